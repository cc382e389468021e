//! How the ranks find each other: rank 0 listens, the others connect and say who they are, and when all are there each
//! gets the group's id. What goes wrong is told to everybody who is there.
//!
//! A client sends a greeting of 20 bytes: [`MAGIC`], then version, world size and rank as u32, little-endian. The answer
//! is [`MAGIC`], one byte (0: the id follows; 1: a text follows, in UTF-8), the length as u32, and that many bytes.
//! Connections stay open until the answer, so a rank that comes again after it died is no duplicate.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::{Duration, Instant};

use super::super::{GroupError, Place};

/// What both sides begin with.
const MAGIC: [u8; 8] = *b"highwatr";

/// Of the greeting.
const VERSION: u32 = 1;

const GREETING_BYTES: usize = 20;

/// The longest text of an answer that is believed, bytes.
const LONGEST_TEXT: u32 = 4096;

/// Between two looks at the connections, or two tries to connect.
const PAUSE: Duration = Duration::from_millis(5);

/// The most time that one try to connect, or one answer to somebody, takes.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most connections that may be open without a greeting; the oldest goes.
const MOST_STRANGERS: usize = 64;

/// Why the ranks did not find each other.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Rank 0 cannot listen.
    #[error(
        "rank 0 cannot listen on {address}: {why}; set MASTER_ADDR to an address of rank 0's machine and MASTER_PORT to a free port"
    )]
    Listen {
        /// `MASTER_ADDR`:`MASTER_PORT`.
        address: String,
        /// Why.
        why: String,
    },
    /// Ranks did not come.
    #[error("rank 0 waited {waited:?} on {address}: ranks {missing:?} did not come{}", others(.strangers))]
    Missing {
        /// `MASTER_ADDR`:`MASTER_PORT`.
        address: String,
        /// How long.
        waited: Duration,
        /// The ranks.
        missing: Vec<u32>,
        /// What came besides, and is none of them.
        strangers: Vec<String>,
    },
    /// Rank 0 was not reached.
    #[error("rank {rank} did not reach rank 0 on {address} within {waited:?}: {why}")]
    Unreachable {
        /// This rank.
        rank: u32,
        /// `MASTER_ADDR`:`MASTER_PORT`.
        address: String,
        /// How long it tried.
        waited: Duration,
        /// What the last try came to.
        why: String,
    },
    /// What the ranks say does not fit together.
    #[error("{what}")]
    Refused {
        /// What does not fit.
        what: String,
    },
}

fn others(strangers: &[String]) -> String {
    if strangers.is_empty() { String::new() } else { format!(" (others came: {})", strangers.join("; ")) }
}

/// Brings the ranks together: all get the id that rank 0 makes.
pub(super) fn exchange(
    place: &Place,
    timeout: Duration,
    make: impl FnOnce() -> Result<[u8; 128], GroupError>,
) -> Result<[u8; 128], GroupError> {
    if place.rank > 0 {
        return Ok(ask(place, timeout)?);
    }
    if place.world_size == 1 {
        return make();
    }
    let listener = listen(place)?;
    let id = make()?;
    Ok(serve(&listener, place, id, timeout).map(|()| id)?)
}

fn address(place: &Place) -> String {
    match place.master_addr.contains(':') {
        true => format!("[{}]:{}", place.master_addr.trim_matches(['[', ']']), place.master_port),
        false => format!("{}:{}", place.master_addr, place.master_port),
    }
}

fn resolve(place: &Place) -> io::Result<Vec<SocketAddr>> {
    let found: Vec<_> = address(place).to_socket_addrs()?.collect();
    if found.is_empty() { Err(io::Error::new(ErrorKind::NotFound, "the name has no address")) } else { Ok(found) }
}

fn listen(place: &Place) -> Result<TcpListener, RendezvousError> {
    let bound = resolve(place).and_then(|found| TcpListener::bind(&*found));
    let bound = bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|error| RendezvousError::Listen { address: address(place), why: error.to_string() })
}

/// Somebody who connected, and what came from there.
struct Stranger {
    stream: TcpStream,
    from: SocketAddr,
    greeting: Vec<u8>,
}

/// What came so far.
enum Greeting {
    /// Not all yet.
    Open,
    /// A rank of a world of this size.
    Rank { world_size: u32, rank: u32 },
    /// Something else.
    Garbage(&'static str),
}

impl Stranger {
    /// Takes what is there.
    fn listen(&mut self) -> Greeting {
        let mut bytes = [0; GREETING_BYTES];
        while self.greeting.len() < GREETING_BYTES {
            match self.stream.read(&mut bytes[self.greeting.len()..]) {
                Ok(0) => return Greeting::Garbage("it hung up"),
                Ok(count) => {
                    let start = self.greeting.len();
                    self.greeting.extend_from_slice(&bytes[start..start + count]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return Greeting::Garbage("the connection broke"),
            }
        }
        let known = self.greeting.len().min(MAGIC.len());
        if self.greeting[..known] != MAGIC[..known] {
            return Greeting::Garbage("it is no rank");
        }
        if self.greeting.len() < GREETING_BYTES {
            return Greeting::Open;
        }
        let number = |at: usize| u32::from_le_bytes(self.greeting[at..at + 4].try_into().expect("four bytes"));
        match number(8) {
            VERSION => Greeting::Rank { world_size: number(12), rank: number(16) },
            _ => Greeting::Garbage("it is a rank of another version of this program"),
        }
    }

    /// Whether the other side is still there.
    fn is_there(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// Whether the answer was sent.
    fn answer(mut self, kind: u8, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).expect("answers are short").to_le_bytes();
        let answer = [&MAGIC[..], &[kind], &length, payload].concat();
        let sent = self.stream.set_nonblocking(false);
        let sent = sent.and_then(|()| self.stream.set_write_timeout(Some(PATIENCE)));
        sent.and_then(|()| self.stream.write_all(&answer)).is_ok()
    }
}

/// The side of rank 0.
struct Host<'a> {
    place: &'a Place,
    strangers: Vec<Stranger>,
    /// Rank 0 has no connection.
    ranks: Vec<Option<Stranger>>,
    /// Who was sent away.
    refused: Vec<String>,
}

/// Waits for all ranks and gives them the id. Whoever is there learns of a failure.
fn serve(listener: &TcpListener, place: &Place, id: [u8; 128], timeout: Duration) -> Result<(), RendezvousError> {
    let ranks = (0..place.world_size).map(|_| None).collect();
    let mut host = Host { place, strangers: Vec::new(), ranks, refused: Vec::new() };
    let gathered = host.gather(listener, timeout);
    let there = host.ranks.into_iter().zip(0..).filter_map(|(there, rank)| Some((there?, rank)));
    match gathered {
        Ok(()) => {
            let lost: Vec<u32> = there.filter_map(|(there, rank)| (!there.answer(0, &id)).then_some(rank)).collect();
            let what = format!("rank 0 could not give the group's id to ranks {lost:?}: they hung up");
            if lost.is_empty() { Ok(()) } else { Err(RendezvousError::Refused { what }) }
        }
        Err(error) => {
            let text = error.to_string();
            there.for_each(|(there, _)| {
                there.answer(1, text.as_bytes());
            });
            Err(error)
        }
    }
}

impl Host<'_> {
    fn gather(&mut self, listener: &TcpListener, timeout: Duration) -> Result<(), RendezvousError> {
        let start = Instant::now();
        loop {
            let came = self.accept(listener);
            self.greet()?;
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(());
            }
            if start.elapsed() >= timeout {
                let (address, strangers) = (address(self.place), std::mem::take(&mut self.refused));
                return Err(RendezvousError::Missing { address, waited: timeout, missing, strangers });
            }
            if !came {
                thread::sleep(PAUSE);
            }
        }
    }

    /// The ranks that did not come, or died since.
    fn missing(&self) -> Vec<u32> {
        let ranks = (0..).zip(&self.ranks).skip(1);
        ranks.filter(|(_, there)| !there.as_ref().is_some_and(Stranger::is_there)).map(|(rank, _)| rank).collect()
    }

    /// Whether somebody came.
    fn accept(&mut self, listener: &TcpListener) -> bool {
        // What else fails here is the other side's connection.
        let Ok((stream, from)) = listener.accept() else { return false };
        if stream.set_nonblocking(true).is_ok() {
            if self.strangers.len() == MOST_STRANGERS {
                let oldest = self.strangers.remove(0);
                self.refuse(oldest, "it says nothing");
            }
            self.strangers.push(Stranger { stream, from, greeting: Vec::new() });
        }
        true
    }

    /// Hears what the strangers say.
    fn greet(&mut self) -> Result<(), RendezvousError> {
        for mut stranger in std::mem::take(&mut self.strangers) {
            match stranger.listen() {
                Greeting::Open => self.strangers.push(stranger),
                Greeting::Garbage(why) => self.refuse(stranger, why),
                Greeting::Rank { world_size, rank } => self.admit(stranger, world_size, rank)?,
            }
        }
        Ok(())
    }

    fn refuse(&mut self, stranger: Stranger, why: &str) {
        if self.refused.len() < 8 {
            self.refused.push(format!("{}: {why}", stranger.from));
        }
        stranger.answer(1, format!("rank 0 refuses this connection: {why}").as_bytes());
    }

    /// Takes a rank in. One that does not fit ends the rendezvous: the ranks were started wrongly.
    fn admit(&mut self, stranger: Stranger, world_size: u32, rank: u32) -> Result<(), RendezvousError> {
        let expected = self.place.world_size;
        let taken = self.ranks.get(rank as usize).map(|there| there.as_ref().is_some_and(Stranger::is_there));
        let what = match (world_size == expected, rank, taken) {
            (false, ..) => format!("rank {rank} has WORLD_SIZE {world_size}, rank 0 has {expected}"),
            (true, 1.., Some(false)) => {
                self.ranks[rank as usize] = Some(stranger);
                return Ok(());
            }
            (true, _, None) => format!("rank {rank} is not below WORLD_SIZE {expected}"),
            (true, ..) => format!("two processes have RANK {rank}"),
        };
        stranger.answer(1, what.as_bytes());
        Err(RendezvousError::Refused { what })
    }
}

/// The side of the others: asks rank 0 for the id.
fn ask(place: &Place, timeout: Duration) -> Result<[u8; 128], RendezvousError> {
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed()).max(PAUSE);
        let tried = resolve(place).and_then(|found| connect(&found, left)).and_then(|stream| talk(stream, place, left));
        let why = match tried {
            Ok(answer) => return answer.map_err(|what| RendezvousError::Refused { what }),
            Err(error) => error.to_string(),
        };
        if start.elapsed() >= timeout {
            let (rank, address) = (place.rank, address(place));
            return Err(RendezvousError::Unreachable { rank, address, waited: timeout, why });
        }
        thread::sleep(PAUSE);
    }
}

fn connect(found: &[SocketAddr], left: Duration) -> io::Result<TcpStream> {
    let mut last = None;
    for address in found {
        match TcpStream::connect_timeout(address, left.min(PATIENCE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("a name without an address was refused"))
}

/// Greets, and waits for the answer: the id, or why there is none. All else is an error of the connection.
fn talk(mut stream: TcpStream, place: &Place, left: Duration) -> io::Result<Result<[u8; 128], String>> {
    let numbers = [VERSION, place.world_size, place.rank].map(u32::to_le_bytes).concat();
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(left))?;
    stream.write_all(&[&MAGIC[..], &numbers].concat())?;
    let mut head = [0; 13];
    stream.read_exact(&mut head)?;
    let length = u32::from_le_bytes(head[9..].try_into().expect("four bytes"));
    let strange = || io::Error::new(ErrorKind::InvalidData, "something else than rank 0 answers there");
    if head[..8] != MAGIC || length > LONGEST_TEXT {
        return Err(strange());
    }
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload)?;
    match head[8] {
        0 => payload.try_into().map(Ok).map_err(|_| strange()),
        _ => Ok(Err(String::from_utf8_lossy(&payload).into_owned())),
    }
}

#[cfg(test)]
mod tests;
