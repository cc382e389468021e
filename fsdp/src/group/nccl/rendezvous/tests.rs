//! The rendezvous between threads, with everything that can come to a port.

use super::*;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

fn id() -> [u8; 128] {
    std::array::from_fn(|place| place as u8)
}

/// Rank 0's listener on a free port of `host`, and its place in a world.
fn open(host: &str, world_size: u32) -> (TcpListener, Place) {
    let listener = TcpListener::bind((host, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let master_port = listener.local_addr().unwrap().port();
    let place = Place { rank: 0, world_size, local_rank: 0, master_addr: host.into(), master_port };
    (listener, place)
}

fn at(place: &Place, rank: u32) -> Place {
    Place { rank, ..place.clone() }
}

fn connect_to(place: &Place) -> TcpStream {
    TcpStream::connect((&*place.master_addr, place.master_port)).unwrap()
}

fn greeting(world_size: u32, rank: u32) -> Vec<u8> {
    [&MAGIC[..], &[VERSION, world_size, rank].map(u32::to_le_bytes).concat()].concat()
}

fn refused(what: &str) -> RendezvousError {
    RendezvousError::Refused { what: what.into() }
}

#[test]
fn all_ranks_get_the_id() {
    for (host, ranks) in [("localhost", 2), ("127.0.0.1", 2), ("localhost", 9)] {
        let (listener, place) = open(host, ranks);
        thread::scope(|scope| {
            let asking: Vec<_> = (1..ranks).map(|rank| at(&place, rank)).collect();
            let asking: Vec<_> = asking.into_iter().map(|place| scope.spawn(move || ask(&place, LONG))).collect();
            assert_eq!(serve(&listener, &place, id(), LONG), Ok(()));
            asking.into_iter().for_each(|asking| assert_eq!(asking.join().unwrap(), Ok(id())));
        });
    }
}

#[test]
fn ipv6_addresses_work_with_and_without_brackets() {
    if TcpListener::bind("[::1]:0").is_err() {
        // The machine has no IPv6; what the addresses become is still told.
        let (_, place) = open("127.0.0.1", 2);
        let text = |addr: &str| address(&Place { master_addr: addr.into(), master_port: 5, ..place.clone() });
        assert_eq!((&*text("::1"), &*text("[::1]")), ("[::1]:5", "[::1]:5"));
        return;
    }
    let (listener, place) = open("::1", 3);
    thread::scope(|scope| {
        let plain = at(&place, 1);
        let brackets = Place { master_addr: "[::1]".into(), ..at(&place, 2) };
        let asking = [plain, brackets].map(|place| scope.spawn(move || ask(&place, LONG)));
        assert_eq!(serve(&listener, &place, id(), LONG), Ok(()));
        asking.into_iter().for_each(|asking| assert_eq!(asking.join().unwrap(), Ok(id())));
    });
}

#[test]
fn a_rank_may_come_before_rank_0_listens() {
    let (listener, place) = open("127.0.0.1", 2);
    drop(listener);
    thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&at(&place, 1), LONG));
        // It is sent away for certain before anybody listens.
        thread::sleep(PAUSE * 3);
        assert_eq!(exchange(&place, LONG, || Ok(id())), Ok(id()));
        assert_eq!(asking.join().unwrap(), Ok(id()));
    });
}

#[test]
fn one_rank_alone_needs_no_port() {
    let place = Place { rank: 0, world_size: 1, local_rank: 0, master_addr: "no such host".into(), master_port: 1 };
    assert_eq!(exchange(&place, SHORT, || Ok(id())), Ok(id()));
}

#[test]
fn ranks_that_do_not_come_are_named_and_those_who_came_learn_of_it() {
    let (listener, place) = open("127.0.0.1", 4);
    thread::scope(|scope| {
        // It is there before rank 0 begins to count.
        let mut there = connect_to(&place);
        there.write_all(&greeting(4, 2)).unwrap();
        let asking = scope.spawn(move || {
            let mut answer = Vec::new();
            there.read_to_end(&mut answer).unwrap();
            String::from_utf8_lossy(&answer[13..]).into_owned()
        });
        let error = serve(&listener, &place, id(), SHORT).unwrap_err();
        let address = address(&place);
        let expected = RendezvousError::Missing { address, waited: SHORT, missing: vec![1, 3], strangers: vec![] };
        assert_eq!(error, expected);
        assert_eq!(asking.join().unwrap(), error.to_string());
    });
}

#[test]
fn rank_0_that_is_not_there_is_an_error_in_time() {
    let (listener, place) = open("127.0.0.1", 2);
    drop(listener);
    let error = ask(&at(&place, 1), SHORT).unwrap_err();
    assert!(matches!(&error, RendezvousError::Unreachable { rank: 1, waited: SHORT, .. }), "{error}");
    let place = Place { master_addr: "no-such-host.invalid".into(), ..place };
    let error = ask(&at(&place, 1), SHORT).unwrap_err();
    assert!(error.to_string().starts_with("rank 1 did not reach rank 0 on no-such-host.invalid:"), "{error}");
}

#[test]
fn rank_0_that_says_nothing_is_an_error_in_time() {
    let (_listener, place) = open("127.0.0.1", 2);
    let error = ask(&at(&place, 1), SHORT).unwrap_err();
    assert!(matches!(error, RendezvousError::Unreachable { .. }), "{error}");
}

#[test]
fn two_processes_with_one_rank_are_an_error_on_all_sides() {
    let (listener, place) = open("127.0.0.1", 3);
    thread::scope(|scope| {
        let place = &place;
        let asking = [1, 1].map(|rank| scope.spawn(move || ask(&at(place, rank), LONG)));
        let expected = refused("two processes have RANK 1");
        assert_eq!(serve(&listener, place, id(), LONG), Err(expected.clone()));
        asking.into_iter().for_each(|asking| assert_eq!(asking.join().unwrap(), Err(expected.clone())));
    });
}

#[test]
fn a_second_rank_0_and_a_rank_beyond_the_world_are_refused() {
    for (rank, what) in [(0, "two processes have RANK 0"), (2, "rank 2 is not below WORLD_SIZE 2")] {
        let (listener, place) = open("127.0.0.1", 2);
        thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&at(&place, rank), LONG));
            assert_eq!(serve(&listener, &place, id(), LONG), Err(refused(what)));
            assert_eq!(asking.join().unwrap(), Err(refused(what)));
        });
    }
}

#[test]
fn another_world_size_is_an_error_on_all_sides() {
    let (listener, place) = open("127.0.0.1", 2);
    thread::scope(|scope| {
        let other = Place { world_size: 3, ..at(&place, 1) };
        let asking = scope.spawn(move || ask(&other, LONG));
        let expected = refused("rank 1 has WORLD_SIZE 3, rank 0 has 2");
        assert_eq!(serve(&listener, &place, id(), LONG), Err(expected.clone()));
        assert_eq!(asking.join().unwrap(), Err(expected));
    });
}

#[test]
fn a_rank_that_died_may_come_again() {
    let (listener, place) = open("127.0.0.1", 3);
    thread::scope(|scope| {
        let mut first = connect_to(&place);
        first.write_all(&greeting(3, 1)).unwrap();
        let mut host =
            Host { place: &place, strangers: vec![], ranks: (0..3).map(|_| None).collect(), refused: vec![] };
        while host.ranks[1].is_none() {
            host.accept(&listener);
            host.greet().unwrap();
        }
        drop(first);
        while host.ranks[1].as_ref().unwrap().is_there() {
            thread::yield_now();
        }
        assert_eq!(host.missing(), [1, 2], "who died is not there");
        let asking = [1, 2].map(|rank| at(&place, rank)).map(|place| scope.spawn(move || ask(&place, LONG)));
        host.gather(&listener, LONG).unwrap();
        host.ranks.into_iter().flatten().for_each(|there| assert!(there.answer(0, &id())));
        asking.into_iter().for_each(|asking| assert_eq!(asking.join().unwrap(), Ok(id())));
    });
}

#[test]
fn garbage_is_sent_away_and_the_ranks_are_still_waited_for() {
    let (listener, place) = open("127.0.0.1", 2);
    thread::scope(|scope| {
        let mut web = connect_to(&place);
        web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut old = connect_to(&place);
        old.write_all(&[&MAGIC[..], &[9; 12]].concat()).unwrap();
        // One that says nothing, one that says half of it, and one that hangs up.
        let silent = connect_to(&place);
        let mut half = connect_to(&place);
        half.write_all(&greeting(2, 1)[..11]).unwrap();
        drop(connect_to(&place));
        let place = &place;
        let read = |mut stream: TcpStream| {
            scope.spawn(move || {
                let mut answer = Vec::new();
                // A reset is an answer as well: rank 0 does not read all of it.
                let _ = stream.read_to_end(&mut answer);
                String::from_utf8_lossy(&answer).into_owned()
            })
        };
        let (web, old) = (read(web), read(old));
        let serving = scope.spawn(|| serve(&listener, place, id(), LONG));
        assert!(old.join().unwrap().ends_with("it is a rank of another version of this program"));
        drop(web.join().unwrap());
        assert_eq!(ask(&at(place, 1), LONG), Ok(id()));
        assert_eq!(serving.join().unwrap(), Ok(()));
        drop((silent, half));
    });
}

#[test]
fn garbage_is_told_when_ranks_do_not_come() {
    let (listener, place) = open("127.0.0.1", 2);
    let mut web = connect_to(&place);
    web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = serve(&listener, &place, id(), SHORT).unwrap_err().to_string();
    assert!(error.contains("(others came: 127.0.0.1:") && error.ends_with("it is no rank)"), "{error}");
}

#[test]
fn a_port_in_use_is_an_error() {
    let (_listener, place) = open("127.0.0.1", 2);
    let error = exchange(&place, SHORT, || panic!("no id is needed")).unwrap_err().to_string();
    let start = format!("rank 0 cannot listen on 127.0.0.1:{}: ", place.master_port);
    assert!(error.starts_with(&start), "{error}");
}

#[test]
fn something_else_on_the_port_is_an_error_in_time() {
    let (listener, place) = open("127.0.0.1", 2);
    listener.set_nonblocking(false).unwrap();
    thread::scope(|scope| {
        let place = &place;
        let asking = scope.spawn(move || ask(&at(place, 1), SHORT));
        let (mut stream, _) = listener.accept().unwrap();
        // Rank 1 may have gone when its time is up.
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        drop((stream, listener));
        let error = asking.join().unwrap().unwrap_err();
        assert!(matches!(error, RendezvousError::Unreachable { rank: 1, .. }), "{error}");
    });
}
