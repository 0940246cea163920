//! What a simulation drives: the real policy, or a plain one to compare it with.

use tollgate_policy::gateway::{Effect, Event, Gateway, Gauges, Reserved};
use tollgate_policy::ids::TenantId;
use tollgate_policy::units::{Service, Time};

/// A gateway's decisions: facts in, orders out, as [`Gateway`] has them.
pub trait Control {
    /// Takes in a fact.
    fn handle(&mut self, event: Event, now: Time);
    /// The next order to carry out.
    fn poll_effect(&mut self) -> Option<Effect>;
    /// When to hand in [`Event::Wake`] if nothing else comes sooner.
    fn next_wake(&self) -> Option<Time>;
    /// What is where.
    fn gauges(&self) -> Gauges;
    /// What the tenants' levels hold for what is in flight.
    fn reserved(&self) -> Reserved;
    /// Service a tenant has had, before division by its weight.
    fn attained(&self, tenant: TenantId) -> Service;
}

impl Control for Gateway {
    fn handle(&mut self, event: Event, now: Time) {
        Self::handle(self, event, now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        Self::poll_effect(self)
    }

    fn next_wake(&self) -> Option<Time> {
        Self::next_wake(self)
    }

    fn gauges(&self) -> Gauges {
        Self::gauges(self)
    }

    fn reserved(&self) -> Reserved {
        Self::reserved(self)
    }

    fn attained(&self, tenant: TenantId) -> Service {
        Self::attained(self, tenant)
    }
}

/// What passes by between a world and its gateway.
pub(crate) trait Ear {
    /// A fact on its way to the gateway, which may be another one behind the ear.
    fn event(&mut self, event: Event, _now: Time) -> Event {
        event
    }

    /// An order on its way to the world, of the last fact.
    fn effect(&mut self, effect: &Effect);
}

/// A gateway that is listened to.
#[derive(Debug)]
pub(crate) struct Overheard<E> {
    pub(crate) gateway: Gateway,
    pub(crate) ear: E,
}

impl<E: Ear> Control for Overheard<E> {
    fn handle(&mut self, event: Event, now: Time) {
        let event = self.ear.event(event, now);
        self.gateway.handle(event, now);
    }

    fn poll_effect(&mut self) -> Option<Effect> {
        let effect = self.gateway.poll_effect();
        effect.iter().for_each(|effect| self.ear.effect(effect));
        effect
    }

    fn next_wake(&self) -> Option<Time> {
        self.gateway.next_wake()
    }

    fn gauges(&self) -> Gauges {
        self.gateway.gauges()
    }

    fn reserved(&self) -> Reserved {
        self.gateway.reserved()
    }

    fn attained(&self, tenant: TenantId) -> Service {
        self.gateway.attained(tenant)
    }
}
