//! A model whose engines run in other processes, and each of those engines.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tollgate_policy::density::{Density, Frame};
use tollgate_policy::ids::{ReplicaId, TenantId};
use tollgate_policy::route::{Affinity, Policy};
use tollgate_policy::units::Tokens;

use super::life::Hosting;
use super::pool::{Aside, Pool};
use crate::config::{RemoteConfig, ReplicaConfig, RoutingConfig};

/// Bytes that the length of a token is reckoned from.
const BYTES_MEASURED: u64 = 1 << 16;

/// Salts that are kept; those of tenants past it are made anew each time.
const SALTS_MAX: usize = 4_096;

/// Bytes of a head, more or less: room for them is made at once.
const HEAD_ROOM: usize = 384;

/// The context of a model of which nobody said it: more than any has, since its engine knows.
const CONTEXT_UNKNOWN: Tokens = Tokens::new(10_000_000);

/// One engine in another process.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) id: ReplicaId,
    pub(crate) pool: Pool,
    /// The connection of its probes.
    pub(crate) aside: Aside,
    /// The policy wants it to be tried.
    pub(crate) start: Notify,
    /// The policy wants its room for another.
    pub(crate) stop: Notify,
    /// It has been let go of.
    pub(crate) gone: CancellationToken,
    /// How it is started, where the gateway starts it.
    pub(crate) hosting: Option<Hosting>,
}

impl Upstream {
    /// Whether it is the one that is configured like this.
    pub(crate) fn is(&self, config: &ReplicaConfig) -> bool {
        match (&config.url, &config.command, &self.hosting) {
            (Some(url), _, None) => self.pool.address() == url,
            (None, Some(command), Some(hosting)) => hosting.is_of(command),
            (Some(_), _, Some(_)) | (None, _, _) => false,
        }
    }
}

/// A model, as far as it is known without seeing it.
#[derive(Debug)]
pub(crate) struct RemoteModel {
    pub(crate) config: RemoteConfig,
    /// Its name in this configuration.
    pub(crate) label: String,
    /// Its name there.
    pub(crate) name: String,
    /// Its context, where the configuration says it.
    pub(crate) context: Option<Tokens>,
    replicas: RwLock<Vec<Arc<Upstream>>>,
    /// How its requests find a replica.
    pub(crate) routing: RoutingConfig,
    /// What tenants' salts are made with.
    salt_key: [u8; 32],
    /// Those that were made, by tenant.
    salts: RwLock<HashMap<String, Arc<str>>>,
    densities: Mutex<Densities>,
}

/// What a model is called.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// In the configuration.
    pub(crate) here: String,
    /// At its engines.
    pub(crate) there: String,
}

/// What was learned from what engines counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Densities {
    /// Bytes per token, of prompts and of answers.
    pub(super) prompt: Density,
    pub(super) output: Density,
    /// What templates write around messages.
    pub(super) frame: Frame,
    /// The last answer came without a count.
    pub(super) untold: bool,
}

impl RemoteModel {
    pub(crate) fn new(
        config: RemoteConfig,
        names: Names,
        context: Option<Tokens>,
        routing: RoutingConfig,
        salt_key: [u8; 32],
    ) -> Self {
        Self {
            config,
            label: names.here,
            name: names.there,
            context,
            replicas: RwLock::default(),
            routing,
            salt_key,
            salts: RwLock::default(),
            densities: Mutex::default(),
        }
    }

    /// The context that the policy fits requests into.
    pub(crate) fn policy_context(&self) -> Tokens {
        self.context.unwrap_or(CONTEXT_UNKNOWN)
    }

    /// The replica of this number, if it is one of this model's.
    pub(crate) fn replica(&self, id: ReplicaId) -> Option<Arc<Upstream>> {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.iter().find(|replica| replica.id == id).cloned()
    }

    /// All that there are.
    pub(crate) fn replicas(&self) -> Vec<Arc<Upstream>> {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.clone()
    }

    /// Takes in one more.
    pub(crate) fn admit(&self, upstream: Arc<Upstream>) {
        let mut replicas = self
            .replicas
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        replicas.push(upstream);
    }

    /// Lets go of one.
    pub(crate) fn dismiss(&self, id: ReplicaId) {
        let mut replicas = self
            .replicas
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        replicas.retain(|replica| replica.id != id);
    }

    /// Where a request is best served, by how its prompt begins.
    pub(crate) fn affinity(&self, tenant: TenantId, prompt: &[u8]) -> Affinity {
        match self.routing.policy {
            Policy::Prefix | Policy::Hash if self.has_several() => {
                let tokens = self.densities().prompt.reckon(BYTES_MEASURED).get();
                let bytes_per_token = BYTES_MEASURED / tokens.max(1);
                Affinity::of_prompt(self.seed(), tenant, prompt, bytes_per_token)
            }
            Policy::Prefix
            | Policy::Hash
            | Policy::PowerOfTwo
            | Policy::LeastLoad
            | Policy::RoundRobin => Affinity::default(),
        }
    }

    /// The same for a request of a session.
    pub(crate) fn in_session(&self, affinity: Affinity, tenant: TenantId, name: &[u8]) -> Affinity {
        affinity.in_session(self.seed(), tenant, name)
    }

    /// What hashes of prompts and sessions begin with: nobody outside knows it.
    fn seed(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.salt_key;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    fn has_several(&self) -> bool {
        let replicas = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        replicas.len() > 1
    }

    /// What keeps a tenant's prefixes its own: the same for all its requests, and for no other's.
    pub(crate) fn salt(&self, tenant: &str) -> Arc<str> {
        let salts = self.salts.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(salt) = salts.get(tenant) {
            return Arc::clone(salt);
        }
        drop(salts);
        let salt: Arc<str> = self.salted(tenant).into();
        let mut salts = self.salts.write().unwrap_or_else(PoisonError::into_inner);
        if salts.len() < SALTS_MAX {
            salts.insert(tenant.to_owned(), Arc::clone(&salt));
        }
        salt
    }

    fn salted(&self, tenant: &str) -> String {
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.salt_key) else {
            return String::from("-"); // Not reached: HMAC takes keys of any length.
        };
        mac.update(self.name.as_bytes());
        mac.update(&[0]);
        mac.update(tenant.as_bytes());
        let digest = mac.finalize().into_bytes();
        let nibbles = digest.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
        nibbles.map(digit).collect()
    }

    /// The head of a request to one of its replicas, but for what is the caller's.
    pub(crate) fn head(&self, upstream: &Upstream, method: &str, path: &str) -> Vec<u8> {
        self.head_with_room(upstream, (method, path), 0)
    }

    /// The same, with room for as much more.
    pub(crate) fn head_with_room(
        &self,
        upstream: &Upstream,
        (method, path): (&str, &str),
        room: usize,
    ) -> Vec<u8> {
        let pool = &upstream.pool;
        let mut head = Vec::with_capacity(HEAD_ROOM + room);
        let target = [
            method,
            " ",
            &pool.address().base,
            path,
            " HTTP/1.1\r\nhost: ",
        ];
        for part in target.into_iter().chain([pool.host(), "\r\n"]) {
            head.extend_from_slice(part.as_bytes());
        }
        if let Some(key) = &self.config.key {
            head.extend_from_slice(b"authorization: Bearer ");
            head.extend_from_slice(key.reveal().as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head
    }

    /// An answer of an engine that refused, with the names that the caller knows.
    pub(crate) fn renamed(&self, body: Bytes, asked: &str) -> Bytes {
        if self.name == asked || memchr::memmem::find(&body, self.name.as_bytes()).is_none() {
            return body;
        }
        match std::str::from_utf8(&body) {
            Ok(text) => Bytes::from(text.replace(&self.name, asked)),
            Err(_) => body,
        }
    }

    pub(super) fn densities(&self) -> Densities {
        *self.densities_mut()
    }

    pub(super) fn densities_mut(&self) -> MutexGuard<'_, Densities> {
        self.densities
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RemoteKind;

    fn model(key: u8) -> RemoteModel {
        let config = RemoteConfig::new(RemoteKind::Vllm);
        RemoteModel::new(
            config,
            Names {
                here: "fast".into(),
                there: "qwen".into(),
            },
            None,
            RoutingConfig::default(),
            [key; 32],
        )
    }

    #[test]
    fn a_salt_is_a_tenants_own_and_stays_the_same() {
        let model = model(1);
        assert_eq!(model.salt("a"), model.salt("a"));
        assert_ne!(model.salt("a"), model.salt("b"));
        assert_ne!(model.salt("a"), self::model(2).salt("a"));
        assert_eq!(model.salt("a").len(), 64);
    }

    #[test]
    fn the_name_there_is_not_told_here() {
        let renamed = model(1).renamed(Bytes::from_static(b"no `qwen` here"), "fast");
        assert_eq!(renamed, "no `fast` here");
    }
}
