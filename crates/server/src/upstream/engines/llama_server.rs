//! llama.cpp's server (`tools/server/server-context.cpp`): what runs and what is deferred; it has
//! no gauge of its KV, and says in `/props` how many slots it has.

use serde::Deserialize;

use super::{Gauges, count};

/// Reads `/metrics`, which it has with `--metrics` only.
pub(super) fn read(page: &str) -> Gauges {
    Gauges {
        waiting: count(page, &["llamacpp:requests_deferred"]),
        running: count(page, &["llamacpp:requests_processing"]),
        ..Gauges::default()
    }
}

/// Reads `/props`.
pub(super) fn read_props(page: &str) -> Gauges {
    #[derive(Deserialize)]
    struct Props {
        total_slots: Option<u32>,
    }
    let props: Option<Props> = serde_json::from_str(page).ok();
    Gauges {
        sequences: props.and_then(|props| props.total_slots),
        ..Gauges::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauges_of_a_page_are_read() {
        let page = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 3\n";
        let gauges = read(page);
        assert_eq!((gauges.running, gauges.waiting), (Some(2), Some(3)));
    }

    #[test]
    fn slots_are_what_it_can_run_at_once() {
        assert_eq!(
            read_props("{\"total_slots\":8,\"x\":{}}").sequences,
            Some(8)
        );
        assert_eq!(read_props("not found").sequences, None);
    }
}
