//! A disk in memory that fails when it is told to, and that knows what a power cut leaves.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::journal::disk::{Disk, DiskFile};
use crate::journal::reader::Shelf;

/// How operations fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It is the last one that happens at all; a write happens in part.
    PowerCut,
    /// A write takes in only a part, and says so. Everything else goes well.
    ShortWrite,
    /// There is no room; a write happens in part.
    NoSpace,
    /// The device fails: what was not synced may be lost, and no later sync says so.
    Io,
}

/// From which operation on, and for how many, the disk fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) from: usize,
    pub(super) count: usize,
    pub(super) how: Failure,
}

impl Plan {
    pub(super) const NONE: Self = Self {
        from: usize::MAX,
        count: 0,
        how: Failure::ShortWrite,
    };
}

/// Numbers for what chance decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// A number below `bound` (Steele, Lea, Flood: SplitMix, OOPSLA '14).
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bound = u64::try_from(bound).unwrap();
        usize::try_from((z ^ (z >> 31)) % bound.max(1)).unwrap()
    }
}

#[derive(Debug, Default)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// A sync has failed: pages that never reached the disk are taken for clean.
    poisoned: bool,
}

#[derive(Clone, Debug)]
enum NameOp {
    Link(String, usize),
    Rename(String, String),
    Remove(String),
}

#[derive(Debug)]
struct State {
    files: Vec<Contents>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Since the folder was synced last.
    unsynced: Vec<NameOp>,
    operations: usize,
    plan: Plan,
    chance: Chance,
}

/// The disk.
#[derive(Clone, Debug)]
pub(super) struct FaultyDisk(Arc<Mutex<State>>);

impl FaultyDisk {
    pub(super) fn new(plan: Plan, chance: Chance) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced: Vec::new(),
            operations: 0,
            plan,
            chance,
        })))
    }

    pub(super) fn shelf(&self) -> Shelf {
        Shelf {
            disk: Arc::new(self.clone()),
            folder: PathBuf::from("ram"),
        }
    }

    /// A disk that takes its time: no operation ends while this is kept.
    pub(super) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    /// Operations that changed something, or tried to.
    pub(super) fn operations(&self) -> usize {
        self.lock().operations
    }

    /// What is found after a power cut: of what was not synced, a part, and not in order.
    pub(super) fn after_power_cut(&self, plan: Plan) -> Self {
        let mut state = self.lock();
        let mut chance = state.chance;
        let mut names = state.durable_names.clone();
        let kept = chance.below(state.unsynced.len() + 1);
        for op in &state.unsynced[..kept] {
            apply(op, &mut names);
        }
        let files = state.files.iter().map(|file| {
            let mut found = file.durable.clone();
            let more = file.now.get(found.len()..).unwrap_or_default();
            let kept = chance.below(more.len() + 1);
            let mut more = more[..kept].to_vec();
            for page in more.chunks_mut(64) {
                // A page that was not written, although one after it was.
                if chance.below(4) == 0 {
                    page.fill(0);
                }
            }
            found.extend(more);
            Contents {
                now: found.clone(),
                durable: found,
                poisoned: false,
            }
        });
        let files = files.collect();
        state.chance = chance;
        Self(Arc::new(Mutex::new(State {
            files,
            durable_names: names.clone(),
            names,
            unsynced: Vec::new(),
            operations: 0,
            plan,
            chance,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

fn apply(op: &NameOp, names: &mut BTreeMap<String, usize>) {
    match op {
        NameOp::Link(name, file) => {
            names.insert(name.clone(), *file);
        }
        NameOp::Rename(from, to) => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        NameOp::Remove(name) => {
            names.remove(name);
        }
    }
}

impl State {
    /// Counts an operation, and says how it fails.
    fn operate(&mut self) -> Option<Failure> {
        let number = self.operations;
        self.operations += 1;
        let Plan { from, count, how } = self.plan;
        let fails = number >= from && (how == Failure::PowerCut || number - from < count);
        fails.then_some(how)
    }

    /// The same, for an operation that happens whole or not at all.
    fn happen(&mut self) -> io::Result<()> {
        match self.operate() {
            None | Some(Failure::ShortWrite) => Ok(()),
            Some(how) => Err(error(how)),
        }
    }

    fn change(&mut self, op: NameOp) {
        apply(&op, &mut self.names);
        self.unsynced.push(op);
    }
}

fn error(how: Failure) -> io::Error {
    match how {
        Failure::NoSpace => io::ErrorKind::StorageFull.into(),
        Failure::PowerCut | Failure::ShortWrite | Failure::Io => io::Error::other("device error"),
    }
}

impl Disk for FaultyDisk {
    fn make(&self) -> io::Result<()> {
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = *self.lock().names.get(name).ok_or(io::ErrorKind::NotFound)?;
        let disk = self.clone();
        Ok(Box::new(FaultyFile { disk, number }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.lock();
        state.happen()?;
        let number = state.files.len();
        state.files.push(Contents::default());
        state.change(NameOp::Link(name.to_owned(), number));
        let disk = self.clone();
        Ok(Box::new(FaultyFile { disk, number }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.happen()?;
        state.change(NameOp::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        state.happen()?;
        state.change(NameOp::Remove(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.happen()?;
        state.durable_names = state.names.clone();
        state.unsynced.clear();
        Ok(())
    }

    fn holds(&self, name: &str, file: &dyn DiskFile) -> io::Result<bool> {
        let number = self.lock().names.get(name).copied();
        let number = number.map(|number| (0, u64::try_from(number).unwrap()));
        Ok(number == Some(file.identity()?))
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    number: usize,
}

impl DiskFile for FaultyFile {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let state = self.disk.lock();
        let from = usize::try_from(at).unwrap();
        let bytes = state.files[self.number].now.get(from..).unwrap_or_default();
        let length = bytes.len().min(into.len());
        into[..length].copy_from_slice(&bytes[..length]);
        Ok(length)
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let mut state = self.disk.lock();
        let failure = state.operate();
        let taken = match failure {
            None => bytes.len(),
            Some(Failure::ShortWrite) => 1 + state.chance.below(bytes.len()),
            Some(_) => state.chance.below(bytes.len() + 1),
        };
        let from = usize::try_from(at).unwrap();
        let now = &mut state.files[self.number].now;
        now.resize(now.len().max(from + taken), 0);
        now[from..from + taken].copy_from_slice(&bytes[..taken]);
        match failure {
            None | Some(Failure::ShortWrite) => Ok(taken),
            Some(how) => Err(error(how)),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.lock();
        let happens = state.happen();
        let file = &mut state.files[self.number];
        match happens {
            Ok(()) if !file.poisoned => {
                file.durable = file.now.clone();
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(error) => {
                file.poisoned = true;
                Err(error)
            }
        }
    }

    fn identity(&self) -> io::Result<(u64, u64)> {
        Ok((0, u64::try_from(self.number).unwrap()))
    }
}
