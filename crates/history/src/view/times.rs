//! The clock by which a history is judged.

use std::collections::HashMap;

use crate::event::Event;

/// The clock by which a history is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stamps {
    /// Those of the processes, which are exact if all of them read one machine's clock.
    #[default]
    Own,
    /// Those of the processes, each set so that the fastest of its events took no time to the recorder. For
    /// processes whose clocks differ by a constant, as in other time namespaces.
    Aligned,
    /// Those of the recorder alone, for processes whose clocks run at another rate. The ends of validity that
    /// such processes state are not used: a process relies on a grant until its last event about it. Give the
    /// checker a tolerance, because events take time to the recorder.
    Recorder,
}

/// The times of events by one clock.
#[derive(Debug)]
pub(crate) struct Times {
    pub(crate) stamps: Stamps,
    /// The time by which the clock of each process is behind that of the recorder.
    behind: HashMap<u64, i128>,
}

impl Times {
    pub(crate) fn of(events: &[Event], stamps: Stamps) -> Times {
        let mut behind: HashMap<u64, i128> = HashMap::new();
        if stamps == Stamps::Aligned {
            for event in events {
                let (Some(process), Some(stamped)) = (event.process, event.stamped) else { continue };
                let delay = i128::from(event.received) - i128::from(stamped);
                behind.entry(process).and_modify(|least| *least = delay.min(*least)).or_insert(delay);
            }
        }
        Times { stamps, behind }
    }

    /// Returns the time of an event.
    pub(crate) fn at(&self, event: &Event) -> u64 {
        match self.stamps {
            Stamps::Own => event.moment(),
            Stamps::Aligned => self.shift(event, event.moment()),
            Stamps::Recorder => event.received,
        }
    }

    /// Returns a time that the process of an event states, by the clock of the judgement.
    pub(crate) fn shift(&self, event: &Event, time: u64) -> u64 {
        let behind = event.process.filter(|_| event.stamped.is_some()).and_then(|p| self.behind.get(&p));
        let shifted = i128::from(time) + behind.copied().unwrap_or(0);
        u64::try_from(shifted.max(0)).unwrap_or(u64::MAX)
    }
}
