//! The reader against the grammar, against every way to cut a stream, and against the writers.

use proptest::{collection::vec, prelude::*};

use super::{
    SseEnd, SseError, SseEvent, SseItem, SseReader, write_comment, write_data, write_done,
    write_event,
};

/// All items of `stream`, read in pieces of the sizes given, over and over.
fn read_cut(stream: &[u8], sizes: &[usize]) -> (Vec<SseItem>, SseEnd) {
    let mut items = Vec::new();
    let mut reader = SseReader::default();
    let mut rest = stream;
    for &size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (piece, after) = rest.split_at(size.clamp(1, rest.len()));
        reader.push(piece, |item| items.push(item)).unwrap();
        rest = after;
    }
    (items, reader.finish())
}

/// All items of `stream`, which ends cleanly and reads the same in one piece and byte by byte.
fn read(stream: &[u8]) -> Vec<SseItem> {
    let whole = read_cut(stream, &[stream.len()]);
    assert_eq!(read_cut(stream, &[1]), whole);
    assert_eq!(whole.1, SseEnd::Clean);
    whole.0
}

fn end(stream: &[u8]) -> SseEnd {
    read_cut(stream, &[stream.len()]).1
}

fn data(data: &str) -> SseItem {
    SseItem::Event(SseEvent {
        event: None,
        data: data.into(),
    })
}

fn named(event: &str, data: &str) -> SseItem {
    SseItem::Event(SseEvent {
        event: Some(event.to_owned()),
        data: data.into(),
    })
}

fn comment(text: &str) -> SseItem {
    SseItem::Comment(text.into())
}

/// The grammar again, as plainly as it is written, over a whole stream.
fn by_the_book(stream: &[u8]) -> Vec<SseItem> {
    let text = stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream);
    let mut lines = vec![Vec::new()];
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if_eq(&b'\n');
                lines.push(Vec::new());
            }
            b'\n' => lines.push(Vec::new()),
            other => lines.last_mut().unwrap().push(other),
        }
    }
    lines.pop(); // It has no line end.

    let (mut items, mut buffer, mut name) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        if line.is_empty() {
            if buffer.pop().is_some() {
                let event = (!name.is_empty()).then(|| String::from_utf8_lossy(&name).into_owned());
                items.push(SseItem::Event(SseEvent {
                    event,
                    data: std::mem::take(&mut buffer),
                }));
            }
            name.clear();
            continue;
        }
        let colon = line.iter().position(|&byte| byte == b':');
        let (field, value) = match colon {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (&line[..], &line[..0]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"" => items.push(SseItem::Comment(value.to_vec())),
            b"data" => {
                buffer.extend_from_slice(value);
                buffer.push(b'\n');
            }
            b"event" => name = value.to_vec(),
            _ => {}
        }
    }
    items
}

#[test]
fn every_kind_of_line_end_ends_a_line() {
    for stream in [
        "data: a\ndata: b\n\ndata: c\n\n",
        "data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n",
        "data: a\rdata: b\r\rdata: c\r\r",
        "data: a\r\ndata: b\n\r\ndata: c\r\r\n",
    ] {
        assert_eq!(
            read(stream.as_bytes()),
            [data("a\nb"), data("c")],
            "{stream:?}"
        );
    }
}

#[test]
fn an_event_comes_out_with_its_blank_line_and_does_not_wait_for_the_lf_of_a_crlf() {
    let mut reader = SseReader::default();
    let mut items = Vec::new();
    reader
        .push(b"data: a\r\n\r", |item| items.push(item))
        .unwrap();
    assert_eq!(items, [data("a")]);
    reader
        .push(b"\ndata: b\r\n\r\n", |item| items.push(item))
        .unwrap();
    assert_eq!(items, [data("a"), data("b")]);
    assert_eq!(reader.finish(), SseEnd::Clean);
}

#[test]
fn one_space_after_the_colon_is_dropped_and_no_more() {
    assert_eq!(
        read(b"data:a\n\ndata: a\n\ndata:  a\n\ndata:\ta\n\n"),
        [data("a"), data("a"), data(" a"), data("\ta"),]
    );
}

#[test]
fn data_lines_are_joined_and_empty_ones_count() {
    assert_eq!(
        read(b"data: a\ndata\ndata:\ndata: b\n\n"),
        [data("a\n\n\nb")]
    );
}

#[test]
fn an_event_line_names_the_event_and_the_last_of_several_wins() {
    assert_eq!(
        read(b"event: x\nevent: error\ndata: a\n\ndata: b\n\n"),
        [named("error", "a"), data("b"),]
    );
    assert_eq!(read(b"data: a\nevent:x\n\n"), [named("x", "a")]);
    assert_eq!(read(b"event: x\nevent\ndata: a\n\n"), [data("a")]);
}

#[test]
fn a_block_without_data_is_no_event_and_leaves_no_name_behind() {
    assert_eq!(read(b"event: x\n\ndata: a\n\n\n\nid: 7\n\n"), [data("a")]);
}

#[test]
fn an_empty_data_line_is_an_event_with_empty_data() {
    assert_eq!(
        read(b"data\n\ndata:\n\ndata: \n\n"),
        [data(""), data(""), data("")]
    );
}

#[test]
fn bare_colons_and_comments_neither_end_nor_disturb_an_event() {
    assert_eq!(
        read(b":\n:\n\n: PROCESSING\n\ndata: a\n:hb\ndata: b\n\n"),
        [
            comment(""),
            comment(""),
            comment("PROCESSING"),
            comment("hb"),
            data("a\nb"),
        ]
    );
}

#[test]
fn fields_that_mean_nothing_here_are_read_over() {
    let stream =
        b"id: 7\nretry: 10\ndat: x\ndatas: x\nData: x\nlonger name: x\n data: x\ndata: a\n\n";
    assert_eq!(read(stream), [data("a")]);
}

#[test]
fn a_value_may_hold_colons_and_nul_and_invalid_text() {
    let items = read(b"data: a:b: \0\xFF\nevent: \xFF\n\n");
    let event = SseEvent {
        event: Some("\u{FFFD}".to_owned()),
        data: b"a:b: \0\xFF".to_vec(),
    };
    assert_eq!(items, [SseItem::Event(event)]);
}

#[test]
fn a_byte_order_mark_is_dropped_at_the_start_and_nowhere_else() {
    assert_eq!(
        read(b"\xEF\xBB\xBFdata: a\n\n\xEF\xBB\xBFdata: b\n\n"),
        [data("a")]
    );
    assert_eq!(
        read(b"\xEF\xBB\xBF\xEF\xBB\xBFdata: a\n\ndata: b\n\n"),
        [data("b")]
    );
    assert_eq!(read(b"\xEF\xBBdata: a\n\ndata: b\n\n"), [data("b")]);
    assert_eq!(read(b"\xEF\xBB\xBF"), []);
    assert_eq!(read(b"\xEF\xBB\xBF:x\n"), [comment("x")]);
}

#[test]
fn characters_cut_between_bytes_come_out_whole() {
    let stream = "data: 你好🙂\n\n".as_bytes();
    for cut in 1..stream.len() {
        let (items, _) = read_cut(stream, &[cut, stream.len()]);
        assert_eq!(items, [data("你好🙂")], "{cut}");
    }
}

#[test]
fn a_stream_that_stops_inside_an_event_is_cut_off() {
    for stream in [
        "data: a\n",
        "data: a",
        "d",
        "event: x\n",
        "data: a\n\ndata",
        "\u{FEFF}d",
        "unknown: a\n",
    ] {
        assert_eq!(end(stream.as_bytes()), SseEnd::CutOff, "{stream:?}");
    }
    assert_eq!(end(b"\xEF\xBB"), SseEnd::CutOff);
}

#[test]
fn a_stream_that_stops_between_events_ends_cleanly() {
    for stream in [
        "",
        "\n",
        "data: a\n\n",
        "data: a\n\n:\n",
        "data: a\n\n: hb",
        ":",
        "data: a\r\r",
    ] {
        assert_eq!(end(stream.as_bytes()), SseEnd::Clean, "{stream:?}");
    }
}

#[test]
fn a_large_event_is_read_whole() {
    let text = "a".repeat(3 * 1024 * 1024);
    let (items, end) = read_cut(format!("data: {text}\n\n").as_bytes(), &[16 * 1024]);
    assert!(items == [data(&text)], "the event differs");
    assert_eq!(end, SseEnd::Clean);
}

#[test]
fn an_event_may_be_as_large_as_the_limit_and_not_a_byte_larger() {
    let too_large = Err(SseError::EventTooLarge { limit: 8 });
    let fits = [
        "data: 12345678\n\n",
        "data: 123\ndata: 4567\n\n",
        ": 12345678\n",
        "longer:x\n",
    ];
    for stream in fits {
        assert_eq!(
            SseReader::new(8).push(stream.as_bytes(), drop),
            Ok(()),
            "{stream:?}"
        );
    }
    for stream in [
        "data: 123456789",
        "data: 123\ndata: 45678",
        "data\ndata\ndata\ndata\ndata\ndata\ndata\ndata\ndata\ndata\n",
        ": 123456789",
        "data: 1234567\n: 12",
        "event: 123456789",
        "event: 12345\ndata: 6789",
        "id: 123456789",
        "a line with no colon",
    ] {
        assert_eq!(
            SseReader::new(8).push(stream.as_bytes(), drop),
            too_large,
            "{stream:?}"
        );
        let mut reader = SseReader::new(8);
        let one_by_one = stream
            .as_bytes()
            .chunks(1)
            .try_for_each(|byte| reader.push(byte, drop));
        assert_eq!(one_by_one, too_large, "{stream:?}");
    }
}

#[test]
fn the_limit_is_for_one_event_and_not_for_the_stream() {
    let mut reader = SseReader::new(8);
    for _ in 0..100 {
        reader
            .push(b":123\n:123\nid: 12345\ndata: 1234567\nevent: 1\n\n", drop)
            .unwrap();
    }
    assert_eq!(reader.finish(), SseEnd::Clean);
}

#[test]
fn a_line_that_never_ends_is_refused_at_the_limit_with_no_more_held() {
    let limit = 1024 * 1024;
    for start in ["data: ", ": ", "id: ", "", "event: x\ndata:\ndata:"] {
        let mut reader = SseReader::new(limit);
        reader.push(start.as_bytes(), drop).unwrap();
        let mut pushed = 0;
        while reader.push(&[b'a'; 1000], drop).is_ok() {
            pushed += 1000;
            let held = reader.capacity();
            assert!(held <= limit + 64, "{start:?} holds {held}");
            assert!(pushed <= limit, "{start:?} is not refused");
        }
        assert!(pushed > limit - 2000, "{start:?} is refused at {pushed}");
        assert!(reader.capacity() <= 64, "what it held is let go");
    }
}

#[test]
fn a_long_event_name_is_refused_before_it_is_kept() {
    let limit = SseReader::LONGEST_EVENT_NAME;
    let mut reader = SseReader::default();
    reader
        .push(format!("event: {}", "a".repeat(limit)).as_bytes(), drop)
        .unwrap();
    assert_eq!(
        reader.push(b"a", drop),
        Err(SseError::NameTooLong { limit })
    );
}

#[test]
fn a_reader_that_failed_gives_what_came_before_and_then_the_same_error_for_ever() {
    let mut reader = SseReader::new(4);
    let mut items = Vec::new();
    let error = reader.push(b"data: a\n\ndata: 12345\n\ndata: b\n\n", |item| {
        items.push(item)
    });
    assert_eq!(items, [data("a")]);
    assert_eq!(error, Err(SseError::EventTooLarge { limit: 4 }));
    assert_eq!(
        reader.push(b"\n\ndata: c\n\n", |item| items.push(item)),
        error
    );
    assert_eq!(items, [data("a")]);
    assert_eq!(reader.finish(), SseEnd::CutOff);
}

#[test]
fn the_errors_say_the_limit_and_what_to_do() {
    insta::assert_snapshot!(
        SseError::EventTooLarge { limit: 8 },
        @"an event of the stream is larger than 8 bytes; raise the limit or send less"
    );
    insta::assert_snapshot!(
        SseError::NameTooLong { limit: 8 },
        @"the name of an event is longer than 8 bytes; use a shorter one"
    );
}

#[test]
fn what_is_written_looks_as_it_should() {
    let mut out = Vec::new();
    write_comment("keep-alive", &mut out);
    write_comment("", &mut out);
    write_data(b"{}", &mut out);
    write_data(b"a\r\nb\rc\n", &mut out);
    write_event("error", b"{}", &mut out);
    write_event("two\nlines", b"", &mut out);
    write_done(&mut out);
    let expected = [
        ": keep-alive\n\n",
        ": \n\n",
        "data: {}\n\n",
        "data: a\ndata: b\ndata: c\ndata: \n\n",
        "event: error\ndata: {}\n\n",
        "event: two lines\ndata: \n\n",
        "data: [DONE]\n\n",
    ];
    assert_eq!(String::from_utf8(out).unwrap(), expected.concat());
}

#[test]
fn a_written_comment_cannot_become_an_event() {
    let mut out = Vec::new();
    write_comment("a\ndata: b\r\n\rdata: c", &mut out);
    assert_eq!(
        read(&out),
        [
            comment("a"),
            comment("data: b"),
            comment(""),
            comment("data: c")
        ]
    );
}

/// Streams that look like event streams, wrong ones included.
fn streams() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec!["\n", "\r", "\r\n"]).prop_map(|s| s.as_bytes().to_vec()),
        4 => prop::sample::select(vec!["data", "event", "id", "retry", ":", ": ", " ", "\u{FEFF}"])
            .prop_map(|s| s.as_bytes().to_vec()),
        1 => "data: ?[a-z🙂你]{0,8}\r?\n\r?\n".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..6),
    ];
    vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

/// Text as it reads back: the grammar makes one line end of all.
fn with_lf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

proptest! {
    #[test]
    fn any_stream_reads_as_the_grammar_says(stream in streams()) {
        prop_assert_eq!(read_cut(&stream, &[stream.len()]).0, by_the_book(&stream));
    }

    #[test]
    fn any_split_reads_the_same(stream in streams(), sizes in vec(1_usize..9, 1..20)) {
        prop_assert_eq!(read_cut(&stream, &sizes), read_cut(&stream, &[stream.len()]));
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_never_hold_more_than_the_limit(
        pieces in vec(vec(any::<u8>(), 0..64), 0..20),
        limit in 0_usize..64,
    ) {
        let mut reader = SseReader::new(limit);
        for piece in pieces {
            let _ = reader.push(&piece, |_| {});
            let held = reader.capacity();
            prop_assert!(held <= limit + 16, "{} > {}", held, limit);
        }
        reader.finish();
    }

    #[test]
    fn what_is_written_reads_back_equal(
        events in vec((any::<Option<String>>(), any::<String>()), 0..10),
        comments in vec("[^\r\n]*", 0..10),
        sizes in vec(1_usize..9, 1..20),
    ) {
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        for text in &comments {
            write_comment(text, &mut out);
            expected.push(comment(text));
        }
        for (name, text) in &events {
            let name = name.as_deref().filter(|name| !name.is_empty());
            match name {
                Some(name) => write_event(name, text.as_bytes(), &mut out),
                None => write_data(text.as_bytes(), &mut out),
            }
            expected.push(SseItem::Event(SseEvent {
                event: name.map(|name| name.replace(['\r', '\n'], " ")),
                data: with_lf(text).into_bytes(),
            }));
        }
        prop_assert_eq!(read_cut(&out, &sizes), (expected, SseEnd::Clean));
    }
}
