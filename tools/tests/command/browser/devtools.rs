//! A browser without a window, driven over a pipe: its debugging protocol, as far as these tests need it.
//!
//! Messages are JSON, each ended by a zero byte. The browser reads them from descriptor 3 and writes to descriptor 4, where
//! a shell puts the pipes.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::scratch::Scratch;

/// Programs that may be such a browser.
const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// No answer takes as long; a browser that hangs fails the test.
const PATIENCE: Duration = Duration::from_secs(120);

/// A browser with one page.
pub(super) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    next: u64,
    session: Option<String>,
    /// What the page did that it was not asked for: errors, messages, requests.
    pub(super) events: Vec<Value>,
    /// Its profile, gone with it.
    _profile: Scratch,
}

impl Browser {
    /// Starts one; `None`, which is said, if there is none on this machine.
    pub(super) fn start() -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut names =
            NAMES.iter().filter(|name| std::env::split_paths(&path).any(|folder| folder.join(name).is_file()));
        let Some(name) = names.next() else {
            // Past the capture of tests that pass: whoever runs them should see it.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: no chromium on this machine, the page was not tried in a browser"
            );
            return None;
        };
        let profile = Scratch::new();
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", name])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"])
            .args(["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let (to, from) = (child.stdin.take().expect("it is a pipe"), child.stdout.take().expect("it is a pipe"));
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let messages = BufReader::new(from).split(0);
            for message in messages.map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("the browser writes JSON");
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Self { child, to, from: receive, next: 0, session: None, events: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
        browser.session = Some(attached["sessionId"].as_str().expect("a session has an id").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(1200, 900);
        Some(browser)
    }

    /// Calls a method, and waits for its answer. Events that come before it are kept.
    pub(super) fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.clone().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser reads");
        loop {
            let message = self.from.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    pub(super) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Which colours the user prefers.
    pub(super) fn prefer(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    /// Opens a file, and waits until it has drawn itself.
    pub(super) fn open(&mut self, page: &Path) {
        self.call("Page.navigate", json!({ "url": format!("file://{}", page.display()) }));
        let drawn = "new Promise((done) => { const look = () => document.documentElement.dataset.drawn && \
            document.readyState === 'complete' ? done(true) : setTimeout(look, 5); look(); })";
        // The old document may be asked first, and goes away with the promise.
        while self.try_evaluate(drawn) != Some(Value::Bool(true)) {}
        self.frame();
    }

    /// The value of an expression in the page; promises are waited for.
    pub(super) fn evaluate(&mut self, expression: &str) -> Value {
        self.try_evaluate(expression).unwrap_or_else(|| panic!("{expression} throws"))
    }

    fn try_evaluate(&mut self, expression: &str) -> Option<Value> {
        self.next += 1;
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let message =
            json!({ "id": self.next, "method": "Runtime.evaluate", "params": parameters, "sessionId": self.session });
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).expect("the browser reads");
        loop {
            let message = self.from.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{expression}: {error}"));
            if message["id"] == self.next {
                let result = &message["result"];
                let failed = !message["error"].is_null() || !result["exceptionDetails"].is_null();
                return (!failed).then(|| result["result"]["value"].clone());
            }
            self.events.push(message);
        }
    }

    /// The text of an element.
    pub(super) fn text(&mut self, selector: &str) -> String {
        let text = self.evaluate(&format!("document.querySelector({}).textContent", json!(selector)));
        text.as_str().expect("elements have texts").to_owned()
    }

    /// Waits until what was asked for is drawn.
    pub(super) fn frame(&mut self) {
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))");
    }

    /// Where an element is: left, top, width, height.
    pub(super) fn place(&mut self, selector: &str) -> [f64; 4] {
        let place = self.evaluate(&format!(
            "(() => {{ const e = document.querySelector({}); e.scrollIntoView({{ block: 'nearest' }}); \
             const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()",
            json!(selector)
        ));
        serde_json::from_value(place).expect("four numbers")
    }

    fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", event);
    }

    pub(super) fn hover(&mut self, x: f64, y: f64) {
        self.call("Input.dispatchMouseEvent", json!({ "type": "mouseMoved", "x": x, "y": y }));
        self.frame();
    }

    pub(super) fn click(&mut self, x: f64, y: f64) {
        self.mouse("mousePressed", x, y);
        self.mouse("mouseReleased", x, y);
        self.frame();
    }

    /// Clicks on the middle of an element.
    pub(super) fn click_on(&mut self, selector: &str) {
        let [left, top, width, height] = self.place(selector);
        self.click(left + width / 2.0, top + height / 2.0);
    }

    pub(super) fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        self.mouse("mousePressed", from.0, from.1);
        self.mouse("mouseMoved", (from.0 + to.0) / 2.0, (from.1 + to.1) / 2.0);
        self.mouse("mouseMoved", to.0, to.1);
        self.mouse("mouseReleased", to.0, to.1);
        self.frame();
    }

    pub(super) fn wheel(&mut self, x: f64, y: f64, turn: f64) {
        let event = json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": turn });
        self.call("Input.dispatchMouseEvent", event);
        self.frame();
    }

    /// Presses a key: a letter, or a name like `ArrowLeft`.
    pub(super) fn press(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyDown", "key": key, "text": text }));
        self.call("Input.dispatchKeyEvent", json!({ "type": "keyUp", "key": key }));
        self.frame();
    }

    /// Nothing went wrong in the page, and it asked for nothing but itself.
    pub(super) fn was_quiet(&mut self) {
        let told = |event: &&Value| {
            let method = event["method"].as_str().unwrap_or_default();
            let url = event["params"]["request"]["url"].as_str().unwrap_or_default();
            ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"].contains(&method)
                || method == "Network.requestWillBeSent" && !url.starts_with("file:///") && url != "about:blank"
                || method == "Network.requestWillBeSent" && !url.ends_with(".html") && url != "about:blank"
        };
        let loud: Vec<&Value> = self.events.iter().filter(told).collect();
        assert!(loud.is_empty(), "{loud:#?}");
        let pages = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent").count();
        assert!(pages >= 1, "requests are seen");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It removes its helpers when it is told to go; what does not answer is ended.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let closed = std::iter::from_fn(|| self.from.recv_timeout(Duration::from_secs(10)).ok()).count() < usize::MAX;
        if !closed || !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
