//! Which request gets which answer.

use std::sync::atomic::Ordering;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tollgate_policy::ids::RequestId;
use tollgate_policy::units::Tokens;
use tollgate_sim::emulated::{Refused, Request};
use tollgate_wire::{ModelCard, write_model_list};

use super::Shared;
use super::answer::{JSON, StreamText, write_answer, write_error};
use super::ask::{Ask, Kind, Wrong};
use super::connection::{Connection, Next, is_watching};
use super::http::{HttpRequest, write_whole};
use super::machine::{Letter, Reader};
use super::metrics;
use super::seen::{End, Made};

/// Answers one request.
pub(super) async fn answer(
    connection: &mut Connection,
    shared: &Shared,
    request: HttpRequest,
) -> Next {
    if is_watching(&request) && shared.settings.script.answers.is_empty() {
        return plain(connection, shared, &request).await;
    }
    let number = shared.requests.fetch_add(1, Ordering::Relaxed) + 1;
    let now = shared.clock.now();
    let made = if is_watching(&request) {
        Made::default()
    } else {
        let seen = &shared.seen;
        seen.came(number, connection.number, now, &request)
    };
    let (end, next) = match shared.settings.script.steps(&request.path) {
        Some(steps) => connection.play(&steps).await,
        None => {
            let kind = match (request.method.as_str(), request.path.as_str()) {
                ("POST", "/v1/chat/completions") => Some(Kind::Chat),
                ("POST", "/v1/completions") => Some(Kind::Text),
                _ => None,
            };
            match kind {
                Some(kind) => {
                    let ask = ask(connection, shared, (kind, number, made), &request.body);
                    ask.await
                }
                None => (End::Sent, plain(connection, shared, &request).await),
            }
        }
    };
    if end == End::ClientGone {
        shared.gone.fetch_add(1, Ordering::Relaxed);
    }
    shared.seen.ended(number, end, shared.clock.now());
    next
}

/// Answers what needs no engine.
async fn plain(connection: &mut Connection, shared: &Shared, request: &HttpRequest) -> Next {
    let mut out = Vec::new();
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/health" | "/ping") => write_whole(200, JSON, b"", &mut out),
        ("GET", "/metrics") => {
            let text = metrics::write(shared, shared.gone.load(Ordering::Relaxed));
            let form = "text/plain; version=0.0.4; charset=utf-8";
            write_whole(200, form, text.as_bytes(), &mut out);
        }
        ("GET", "/seen") => {
            let text = format!("{:#}\n", shared.seen.to_json());
            write_whole(200, JSON, text.as_bytes(), &mut out);
        }
        ("DELETE", "/seen") => {
            shared.seen.forget();
            write_whole(200, JSON, b"{}", &mut out);
        }
        ("POST", "/cost") => change_cost(shared, &request.body, &mut out),
        ("GET", "/v1/models") => models(shared, &mut out),
        ("GET", path) => model(shared, path, &mut out),
        (_, path) => write_error(&not_found(path), &mut out),
    }
    match connection.write(&out).await {
        Ok(()) => Next::Request,
        Err(_) => Next::Close,
    }
}

fn not_found(path: &str) -> Wrong {
    Wrong {
        status: 404,
        message: format!("there is nothing at {path}"),
        param: None,
        code: None,
    }
}

/// `POST /cost` with a number: what a step costs from now on, in per cent.
fn change_cost(shared: &Shared, body: &[u8], out: &mut Vec<u8>) {
    let percent = std::str::from_utf8(body).ok();
    let percent = percent.and_then(|text| text.trim().parse::<u64>().ok());
    match (percent, &shared.machine) {
        (Some(percent @ 1..=100_000), Some(machine)) => {
            machine.change_cost(percent);
            write_whole(200, JSON, b"{}", out);
        }
        (_, None) => write_error(
            &Wrong {
                message: "answers take no time here".to_owned(),
                status: 400,
                ..not_found("")
            },
            out,
        ),
        (_, Some(_)) => write_error(
            &Wrong {
                message: "send a number of per cent, 1 to 100000".to_owned(),
                status: 400,
                ..not_found("")
            },
            out,
        ),
    }
}

fn card<'a>(shared: &Shared, id: &'a str) -> ModelCard<'a> {
    ModelCard {
        id,
        created: shared.started_unix,
        context_length: Some(shared.context()),
    }
}

fn models(shared: &Shared, out: &mut Vec<u8>) {
    let names = shared.settings.models.iter();
    let cards: Vec<_> = names.map(|name| card(shared, name)).collect();
    let mut body = Vec::new();
    write_model_list(&cards, &mut body);
    write_whole(200, JSON, &body, out);
}

fn model(shared: &Shared, path: &str, out: &mut Vec<u8>) {
    let id = path.strip_prefix("/v1/models/");
    let found = shared
        .settings
        .models
        .iter()
        .find(|name| Some(name.as_str()) == id);
    match found {
        Some(name) => {
            let mut body = Vec::new();
            card(shared, name).write(&mut body);
            write_whole(200, JSON, &body, out);
        }
        None => write_error(&not_found(path), out),
    }
}

async fn ask(
    connection: &mut Connection,
    shared: &Shared,
    (kind, number, made): (Kind, u64, Made),
    body: &[u8],
) -> (End, Next) {
    let ask = match Ask::read(kind, body, shared) {
        Ok(ask) => ask,
        Err(wrong) => {
            let mut out = Vec::new();
            write_error(&wrong, &mut out);
            return sent(connection.write(&out).await);
        }
    };
    match &shared.machine {
        None => {
            let mut out = Vec::with_capacity(8_192);
            made.add(ask.output);
            at_once(&ask, number, shared.started_unix, &mut out);
            sent(connection.write(&out).await)
        }
        Some(machine) => {
            let (letters, mut received) = unbounded_channel();
            let id = RequestId::new(number);
            let request = Request {
                id,
                prompt: Tokens::new(ask.prompt),
                output: Tokens::new(ask.output),
                prefix: ask.names.clone(),
            };
            machine.ask(request, Reader { letters, made });
            let paced = Paced {
                ask: &ask,
                number,
                created: shared.started_unix,
            };
            let ended = paced.pass_on(connection, &mut received).await;
            if ended.0 == End::ClientGone {
                machine.leave(id);
            }
            ended
        }
    }
}

fn at_once(ask: &Ask, number: u64, created: u64, out: &mut Vec<u8>) {
    if !ask.streams {
        return write_answer(ask, number, created, 0, out);
    }
    let mut text = StreamText::new(ask, number, created);
    text.begin(out);
    for _ in 0..ask.output {
        text.token(out);
    }
    text.end(out);
}

fn sent(result: std::io::Result<()>) -> (End, Next) {
    match result {
        Ok(()) => (End::Sent, Next::Request),
        Err(_) => (End::ClientGone, Next::Close),
    }
}

/// An answer whose tokens come when the engine has them.
struct Paced<'a> {
    ask: &'a Ask,
    number: u64,
    created: u64,
}

impl Paced<'_> {
    async fn pass_on(
        &self,
        connection: &mut Connection,
        letters: &mut UnboundedReceiver<Letter>,
    ) -> (End, Next) {
        let mut text = None;
        loop {
            let letter = tokio::select! {
                biased;
                letter = letters.recv() => letter,
                () = connection.left() => return (End::ClientGone, Next::Close),
            };
            let mut out = Vec::new();
            let mut next = letter;
            let mut over = false;
            // All that is there goes out in one write.
            while let Some(letter) = next {
                over |= self.write(letter, &mut text, &mut out);
                next = letters.try_recv().ok();
            }
            // The engine's thread has gone: only a bug in it does that.
            if letter.is_none() {
                return (End::Cut, Next::Close);
            }
            let written = connection.write(&out).await;
            if over || written.is_err() {
                return sent(written);
            }
        }
    }

    /// Appends what a letter brings; whether the answer is over.
    fn write(&self, letter: Letter, text: &mut Option<StreamText>, out: &mut Vec<u8>) -> bool {
        match letter {
            Letter::Token if self.ask.streams => {
                text.get_or_insert_with(|| {
                    let mut text = StreamText::new(self.ask, self.number, self.created);
                    text.begin(out);
                    text
                })
                .token(out);
                false
            }
            Letter::Token => false,
            Letter::Ended(used) => {
                match text {
                    Some(text) => {
                        text.found(used.cached.get());
                        text.end(out);
                    }
                    None => {
                        let cached = used.cached.get();
                        write_answer(self.ask, self.number, self.created, cached, out);
                    }
                }
                true
            }
            Letter::Refused(why) => {
                write_error(&refusal(why), out);
                true
            }
        }
    }
}

fn refusal(why: Refused) -> Wrong {
    let (status, message) = match why {
        Refused::QueueFull => (503, "as many requests wait as may; try again later"),
        Refused::TooLong => (400, "prompt and output do not fit into this engine"),
        Refused::Empty => (400, "a prompt and an output have a token at least"),
    };
    Wrong {
        status,
        message: message.to_owned(),
        param: None,
        code: None,
    }
}
