//! What a run ran on, for its record.

use serde::Serialize;

/// The machine that sent the load.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// The processor, as it names itself; empty where the system does not say.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in MiB; 0 where the system does not say.
    pub memory_mib: u64,
    /// The system and its release.
    pub system: String,
}

impl Machine {
    /// Asks the system, without failing: what it does not tell stays empty.
    pub fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let release = read("/proc/sys/kernel/osrelease");
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal")
                .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
                .map_or(0, |kib| kib / 1024),
            system: format!("{} {}", std::env::consts::OS, release.trim())
                .trim()
                .to_owned(),
        }
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "model\t\t: 85\nmodel name\t: Fast CPU @ 2 GHz\nmodel name\t: other\n";
        assert_eq!(
            field(text, "model name").as_deref(),
            Some("Fast CPU @ 2 GHz")
        );
        assert_eq!(field(text, "name"), None);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!(Machine::this().cores > 0);
    }
}
