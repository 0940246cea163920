//! Fits models of what plans miss, one after the other, on a thread that comes after all others:
//! a fit takes some tens of milliseconds of a core, and no request waits for one.
//!
//! It is ordered by the policy and handed back to it, and decides nothing. What there is no room
//! for is let go of: the policy asks again.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use tollgate_policy::gateway::{Event, Fit, Learned};

use super::held;
use crate::desk::Desk;

/// Models that wait to be fitted: one of each pool at the most.
const FITS_MAX: usize = 256;

/// How low the claim of the thread on a processor is: the lowest that there is.
const NICE: i32 = 19;

/// The way to the thread.
#[derive(Debug)]
pub(super) struct Fitter {
    orders: SyncSender<Option<Box<Fit>>>,
    ear: Mutex<Option<Receiver<Option<Box<Fit>>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Fitter {
    pub(super) fn new() -> Self {
        let (orders, ear) = sync_channel(FITS_MAX);
        Self {
            orders,
            ear: Mutex::new(Some(ear)),
            thread: Mutex::new(None),
        }
    }

    /// Has a model fitted.
    pub(super) fn order(&self, fit: Box<Fit>) {
        // Err: there is no room, or nobody to do it.
        let _ = self.orders.try_send(Some(fit));
    }

    /// Begins to fit.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn begin(&self, desk: &Arc<Desk>) -> std::io::Result<()> {
        let Some(ear) = held(&self.ear).take() else {
            return Ok(());
        };
        let desk = Arc::downgrade(desk);
        let thread = std::thread::Builder::new().name("fit".to_owned());
        let thread = thread.spawn(move || {
            // Err: the system does not let it, and then it is as important as the others.
            let _ = rustix::process::setpriority_process(None, NICE);
            run(&ear, &desk);
        })?;
        *held(&self.thread) = Some(thread);
        Ok(())
    }

    /// Ends once what it is at is done. Blocks until it has.
    pub(super) fn stop(&self) {
        let Some(thread) = held(&self.thread).take() else {
            return;
        };
        // Err: it has ended.
        let _ = self.orders.send(None);
        if thread.join().is_err() {
            tracing::error!("the thread that fits models of latency panicked");
        }
    }
}

fn run(ear: &Receiver<Option<Box<Fit>>>, desk: &Weak<Desk>) {
    while let Ok(Some(fit)) = ear.recv() {
        let fitted = fit.task.fit();
        tracing::debug!(
            model = fit.model.get(),
            lessons = fitted.lessons,
            trees = fitted.trees.as_slice().len(),
            loss_per_mille = fitted.loss,
            "a model of latency was fitted"
        );
        let Some(desk) = desk.upgrade() else {
            return;
        };
        desk.submit(Event::Recalled {
            model: fit.model,
            learned: Learned::Fitted(Box::new(fitted)),
        });
    }
}
