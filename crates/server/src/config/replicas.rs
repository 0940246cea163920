//! The engines of one model: where each listens, how it is started, and whom it serves.

use tollgate_policy::tenant::Class;

use super::decode::{Cursor, Fields};
use super::fleet::CommandConfig;
use super::remote::{self, Address, RemoteKind};

/// Engines of one model in this process; each has a thread and a KV pool of its own.
const REPLICAS_MAX: usize = 16;

/// Engines of one model in other processes.
const REMOTE_REPLICAS_MAX: usize = 256;

/// One engine of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Where it listens, if it runs in another process.
    pub url: Option<Address>,
    /// How it is started, if the gateway starts it.
    pub command: Option<CommandConfig>,
    /// The one class it serves, where it does not serve all.
    pub only: Option<Class>,
}

/// Reads the engines of one model. Some must serve every class, or a tenant's promise could be one
/// that nobody keeps.
pub(super) fn replicas(
    fields: &mut Fields<'_, '_>,
    kind: Option<RemoteKind>,
) -> Option<Vec<ReplicaConfig>> {
    let remote = kind.is_some();
    let most = if remote {
        REMOTE_REPLICAS_MAX
    } else {
        REPLICAS_MAX
    };
    if remote {
        let need = "say where the engines listen: [{ url: \"http://127.0.0.1:8000\" }]";
        fields.required("replicas", need, |value| replica_list(&value, most, kind))
    } else {
        fields.optional("replicas", |value| replica_list(&value, most, kind))
    }
}

fn replica_list(
    section: &Cursor<'_>,
    most: usize,
    kind: Option<RemoteKind>,
) -> Option<Vec<ReplicaConfig>> {
    let want = format!("a list of 1 to {most} replicas, like [{{}}, {{}}]");
    let list = section.list(|replica| replica.mapping(|fields| replica_fields(fields, kind)))?;
    if section.is_empty_list() || list.len() > most {
        return section.refuse(want);
    }
    if list.iter().all(|replica| replica.only.is_some()) {
        section.report("leaves nobody to serve the other classes; add {}");
        return None;
    }
    Some(list)
}

fn replica_fields(fields: &mut Fields<'_, '_>, kind: Option<RemoteKind>) -> ReplicaConfig {
    let (url, command) = match kind {
        Some(kind) => {
            let url = fields.optional("url", |value| remote::address(&value));
            let command = CommandConfig::read(fields, kind);
            match (
                fields.find("url").is_some(),
                fields.find("command").is_some(),
            ) {
                (true, true) => fields.report("command", "is given beside url; leave one out"),
                (false, false) => {
                    let need = "say where it listens, like http://127.0.0.1:8000, or how it is \
                                started by command";
                    fields.report("url", format!("is missing; {need}"));
                }
                (true, false) | (false, true) => {}
            }
            (url, command)
        }
        None => {
            for key in ["url", "command", "device", "start_timeout"] {
                if fields.find(key).is_some() {
                    fields.report(
                        key,
                        "is for engines in other processes; this one is in ours",
                    );
                }
            }
            (None, None)
        }
    };
    let only = |value: Cursor<'_>| value.choice(&[("reserved", Class::Reserved)]);
    ReplicaConfig {
        url,
        command,
        only: fields.optional("only", only),
    }
}
