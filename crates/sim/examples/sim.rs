//! Runs a scenario: `cargo run --release -p tollgate-sim --example sim -- scenarios/herd.yaml
//! [SEED | FROM..TO]`. The `tollgate sim` verb does the same and more.

#![expect(clippy::print_stdout, reason = "a report goes to stdout")]

use tollgate_sim::report::render;
use tollgate_sim::scenario::Scenario;
use tollgate_sim::trial;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("name a scenario")?;
    let seeds = args.next().unwrap_or_else(|| "1".to_owned());
    let text = std::fs::read_to_string(&path)?;
    let scenario = Scenario::parse(&text).map_err(|mistake| format!("{path}:{mistake}"))?;
    if let Some((from, to)) = seeds.split_once("..") {
        let command = format!("tollgate sim {path}");
        let mut failed = |text: &str| print!("{text}");
        let seeds = from.parse::<u64>()?..to.parse()?;
        let count = trial::many(&scenario, seeds, None, (&command, &mut failed))?;
        println!(
            "{} seeds, {} failed, {} facts",
            count.seeds, count.failed, count.facts
        );
        return Ok(());
    }
    // The events of the first gateway go to stderr where a third argument asks for them.
    let mut write = |line: &str| eprint!("{line}");
    let log: Option<&mut dyn FnMut(&str)> = match args.next() {
        Some(_) => Some(&mut write),
        None => None,
    };
    let trials = trial::one(&scenario, seeds.parse()?, None, log)?;
    print!("{}", render(&scenario, &trials));
    Ok(())
}
