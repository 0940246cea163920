//! Scenarios of one tenant that floods, or several that fill the engine, beside a quiet one.

use clap::ValueEnum;
use tollgate_sim::workload::TenantLoad;
use tollgate_sim::{Arrivals, Lengths};

/// A mix of tenants. All arrivals are Poisson; prompts have 128 tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// One tenant offers 32 requests a second of 128 output tokens, beside the quiet one.
    Flood,
    /// Four tenants offer 9 requests a second of 128 output tokens each, beside the quiet one.
    Four,
    /// One tenant offers 9 requests a second of 512 output tokens, beside the quiet one.
    Long,
    /// One tenant offers 17 requests a second of 128 output tokens, and is alone.
    Lone,
    /// The quiet tenant alone: 1 request a second of 64 output tokens.
    Solo,
}

impl Scenario {
    /// Name of the tenant whose latency is at stake; that of the lone one in `lone`.
    pub const fn watched(self) -> &'static str {
        match self {
            Self::Flood | Self::Four | Self::Long | Self::Solo => "quiet",
            Self::Lone => "lone",
        }
    }

    /// What each tenant sends; the quiet one is last.
    pub fn loads(self) -> Vec<TenantLoad> {
        let mut loads = match self {
            Self::Flood => vec![load("flooder", 32.0, 128)],
            Self::Four => ["one", "two", "three", "four"]
                .map(|name| load(name, 9.0, 128))
                .into(),
            Self::Long => vec![load("long", 9.0, 512)],
            Self::Lone => return vec![load("lone", 17.0, 128)],
            Self::Solo => Vec::new(),
        };
        loads.push(load("quiet", 1.0, 64));
        loads
    }
}

fn load(name: &str, rate: f64, output: u64) -> TenantLoad {
    let (prompt, output) = (Lengths::Constant(128), Lengths::Constant(output));
    TenantLoad::new(name, Arrivals::Poisson { rate }, prompt, output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_the_tenant_that_is_watched_and_loads_that_can_be_drawn() {
        for scenario in Scenario::value_variants() {
            let loads = scenario.loads();
            assert!(
                loads.iter().any(|load| load.name == scenario.watched()),
                "{scenario:?}"
            );
            for load in loads {
                load.arrivals.check().unwrap();
                load.output.check().unwrap();
            }
        }
    }

    #[test]
    fn the_quiet_tenant_sends_the_same_whoever_is_beside_it() {
        let quiet = |scenario: Scenario| scenario.loads().pop().unwrap();
        assert_eq!(quiet(Scenario::Flood), quiet(Scenario::Solo));
        assert_eq!(quiet(Scenario::Four), quiet(Scenario::Long));
    }
}
