//! Whatever the text, there is a configuration or a problem, and no panic.

use proptest::prelude::*;

use super::*;

/// Whatever the text, there is a configuration or a problem in a place that exists.
fn ends_well(text: &str) {
    let Err(found) = parse(text, &env) else {
        return;
    };
    assert!(
        !found.is_empty(),
        "neither a configuration nor a problem:\n{text}"
    );
    let lines = text
        .split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'])
        .count();
    for problem in found {
        assert!(
            (1..=lines + 1).contains(&problem.line),
            "{problem} of {lines} lines"
        );
        assert!(!problem.to_string().contains('\n'), "{problem}");
    }
}

/// An edit of the example: what to cut, and what to put there.
fn edit() -> impl Strategy<Value = (prop::sample::Index, usize, String)> {
    let fragments: Vec<&str> =
        "§: §\n§- §[§]§{§}§'§\"§&a §*a§!§|§>§#§\t§${§$§${RPM}§~§0§-1§9999999999§é§\r\n§? §---\n§%"
            .split('§')
            .collect();
    let fragments = prop::sample::select(fragments);
    let text = prop_oneof![3 => fragments.prop_map(str::to_owned), 1 => any::<String>()];
    (any::<prop::sample::Index>(), 0_usize..12, text)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn any_text_is_a_configuration_or_has_a_problem(text in any::<String>()) {
        ends_well(&text);
    }

    #[test]
    fn any_yaml_like_text_is_a_configuration_or_has_a_problem(
        text in "([a-z]{1,3}(: | ?- ?|\\n {0,6}|[\\[\\]{},&*!|>'\"#%@$?~\t]{0,2})){0,40}"
    ) {
        ends_well(&text);
    }

    #[test]
    fn an_edited_example_is_a_configuration_or_has_a_problem(
        edits in prop::collection::vec(edit(), 1..6)
    ) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, cut, put) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + cut).min(text.len());
            text.splice(at..end, put.chars());
        }
        ends_well(&text.iter().collect::<String>());
    }
}
