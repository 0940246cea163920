//! The command line of a flood: tenants beside quiet ones, at endpoints side by side.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::load::{LoadArgs, Target};
use super::{ArgsError, value};
use crate::flood::{Arm, Plan, Scenario};
use crate::spec::{Endpoint, EndpointError, Spec};

/// Arguments of a flood.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct FloodArgs {
    /// An endpoint, and what to call it; give several to see them side by side. Without any, three
    /// are started here, side by side: plain first in first out, that with 600 requests a
    /// minute for each tenant, and fair share, on an emulated engine.
    #[arg(long, value_name = "NAME=URL")]
    pub url: Vec<NamedEndpoint>,
    /// The model to ask for.
    #[arg(long, value_name = "NAME", default_value = "stub", value_parser = value::name)]
    pub model: String,
    /// Who is beside the quiet tenants.
    #[arg(long, value_enum, default_value = "flood")]
    pub scenario: Scenario,
    /// Tenants of the scenario `flood`: one that floods, the others quiet.
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = value::from_zero::<usize>)]
    pub tenants: usize,
    /// Go round so often. The endpoints take turns, and each round begins with another one.
    #[arg(long, value_name = "N", default_value_t = NonZeroU32::MIN,
          value_parser = value::from_one::<NonZeroU32>)]
    pub rounds: NonZeroU32,
    /// Draw tokens a second against the quiet tenants' p99 TTFT into this SVG. Endpoints named
    /// `SERIES:LABEL` are points of one line.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// What every load has.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// An endpoint and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// What it is called in the table.
    pub name: String,
    /// Where it is.
    pub endpoint: Endpoint,
}

impl FromStr for NamedEndpoint {
    type Err = EndpointError;

    /// `NAME=URL`, or a URL that is its own name.
    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.is_empty() && !name.contains('/') => (name, url),
            Some(_) | None => (text, text),
        };
        Ok(Self {
            name: name.to_owned(),
            endpoint: url.parse()?,
        })
    }
}

const EXAMPLES: &str = "\
Examples:
  tollgate bench flood                                       all arms, on engines started here
  tollgate bench flood --tenants 6 --rounds 3 --rows flood.csv
  tollgate bench flood --scenario four --tokenizer bytes \\
      --url tollgate=http://127.0.0.1:8080/v1 --url direct=http://127.0.0.1:8000/v1

A quiet tenant sends 1 request/s of 128 prompt and 64 output tokens. Fairness numbers stand beside
the tokens a second that they were had at. With --rows, each arm and round has a file of its own.
Exits 0 after valid runs, 2 after one that is not, and where there was none.";

impl FloodArgs {
    /// What to run: the endpoints given, or those that `started` names.
    ///
    /// # Errors
    /// A number of tenants that is none, a key that is not set, or two endpoints of one name.
    pub fn plan(&self, started: &[NamedEndpoint], command: &str) -> Result<Plan, ArgsError> {
        if self.scenario == Scenario::Flood && !(2..=64).contains(&self.tenants) {
            return Err(ArgsError::Tenants(self.tenants));
        }
        let endpoints = if self.url.is_empty() {
            started
        } else {
            &self.url
        };
        let mut arms: Vec<Arm> = Vec::new();
        for (place, named) in endpoints.iter().enumerate() {
            if arms.iter().any(|arm| arm.name == named.name) {
                return Err(ArgsError::SameName(named.name.clone()));
            }
            if place == 0 && self.scenario.has_others() {
                let solo = format!("solo, {}", named.name);
                arms.push(self.arm(&solo, &named.endpoint, command, Quiet::Alone)?);
            }
            arms.push(self.arm(&named.name, &named.endpoint, command, Quiet::Beside)?);
        }
        Ok(Plan {
            arms,
            quiet: self.scenario.quiet(self.tenants),
            rounds: self.rounds.get(),
        })
    }

    fn arm(
        &self,
        name: &str,
        endpoint: &Endpoint,
        command: &str,
        quiet: Quiet,
    ) -> Result<Arm, ArgsError> {
        let watched = self.scenario.quiet(self.tenants);
        let mut loads = self.scenario.loads(self.tenants);
        match quiet {
            Quiet::Alone => loads.retain(|load| watched.contains(&load.name)),
            Quiet::Beside => {}
        }
        let names: Vec<String> = loads.iter().map(|load| load.name.clone()).collect();
        // A key for somebody who is left out here is no mistake.
        let mut load_args = self.load.clone();
        load_args.key.retain(|key| {
            let name = key.split_once('=').map_or(key.as_str(), |(name, _)| name);
            quiet == Quiet::Beside || name == "*" || names.iter().any(|own| own == name)
        });
        let target = Target {
            endpoint: endpoint.clone(),
            model: self.model.clone(),
            closed: None,
            command: command.to_owned(),
        };
        let source = load_args.drawn(loads)?;
        let spec: Spec = load_args.spec(target, source);
        Ok(Arm {
            name: name.to_owned(),
            spec,
        })
    }
}

/// Whether the quiet tenants have company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quiet {
    Alone,
    Beside,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;
    use crate::spec::Source;

    #[derive(Debug, Parser)]
    struct Flood {
        #[command(flatten)]
        args: FloodArgs,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let parsed = Flood::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let plan = parsed.args.plan(&[], line);
        plan.map_err(|error| error.to_string())
    }

    fn tenants(arm: &Arm) -> usize {
        match &arm.spec.source {
            Source::Drawn(tenants) => tenants.len(),
            Source::Replayed { .. } => 0,
        }
    }

    #[test]
    fn the_command_line_holds_together() {
        Flood::command().debug_assert();
    }

    #[test]
    fn endpoints_stand_side_by_side_with_the_quiet_ones_alone_before_them() {
        let plan =
            plan("flood --tenants 6 --url a=http://h:1 --url b=http://h:2 --rounds 3").unwrap();
        let names: Vec<&str> = plan.arms.iter().map(|arm| arm.name.as_str()).collect();
        assert_eq!(names, ["solo, a", "a", "b"]);
        let counts: Vec<usize> = plan.arms.iter().map(tenants).collect();
        assert_eq!(counts, [5, 6, 6]);
        assert_eq!((plan.quiet.len(), plan.rounds), (5, 3));
    }

    #[test]
    fn a_mistake_says_what_to_write_instead() {
        assert!(
            plan("flood --tenants 1 --url a=http://h:1")
                .unwrap_err()
                .contains("use 2 to 64")
        );
        let twice = plan("flood --url a=http://h:1 --url a=http://h:2").unwrap_err();
        assert!(twice.contains("two endpoints are called `a`"), "{twice}");
        assert!(
            plan("flood --url a=h:1")
                .unwrap_err()
                .contains("use http://HOST:PORT")
        );
    }

    #[test]
    fn a_key_of_the_one_who_floods_is_no_mistake_where_it_is_left_out() {
        let plan = plan("flood --url a=http://h:1 --key flooder=PATH --key quiet=PATH");
        assert_eq!(plan.unwrap().arms.len(), 2);
    }
}
