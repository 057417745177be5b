//! The lines that a keeper and those that ask it send each other.

use leasehold::backend::Moment;

use crate::output::text::visible;
use crate::system::processes::Identity;

/// A request to a keeper, which is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Release,
    /// To report what happens to the claim with this tag. The callers are those of the inner section that asks, if it
    /// is one: it does not end before they have.
    Follow {
        tag: String,
        callers: Vec<Identity>,
    },
}

/// The answer to the request to release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Released,
    Lost,
    /// It was asked for from inside a run that would have to end first.
    Inside,
}

/// The answer of a keeper that refuses a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The section is over: the keeper waits for the followers that it has.
    Over,
    /// The keeper has as many followers as it can have.
    Full,
}

/// A report of a keeper to those that follow it, which is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It is held, without an end that is known.
    Held,
    /// It is held until then, unless another report comes before.
    Until(Moment),
    Lost(String),
}

impl Request {
    pub(crate) fn line(&self) -> String {
        match self {
            Request::Release => "release\n".to_owned(),
            Request::Follow { tag, callers } => {
                let callers: String =
                    callers.iter().take(MOST_CALLERS).map(|caller| format!(" {caller}")).collect();
                format!("follow {tag}{callers}\n")
            }
        }
    }

    pub(crate) fn read(line: &str) -> Option<Request> {
        match line.split_once(' ') {
            None if line == "release" => Some(Request::Release),
            Some(("follow", follower)) => {
                let mut words = follower.split(' ');
                let tag = words.next()?.to_owned();
                let callers = words.map(|caller| caller.parse().ok()).collect::<Option<_>>()?;
                Some(Request::Follow { tag, callers })
            }
            _ => None,
        }
    }
}

impl Refusal {
    pub(crate) fn line(self) -> &'static str {
        match self {
            Refusal::Over => "over\n",
            Refusal::Full => "full\n",
        }
    }

    pub(crate) fn read(text: &[u8]) -> Option<Refusal> {
        [Refusal::Over, Refusal::Full].into_iter().find(|refusal| text == refusal.line().as_bytes())
    }
}

impl Answer {
    pub(crate) fn line(self) -> &'static str {
        match self {
            Answer::Released => "released\n",
            Answer::Lost => "lost\n",
            Answer::Inside => "inside\n",
        }
    }
}

impl Report {
    pub(crate) fn line(&self) -> String {
        match self {
            Report::Held => "held\n".to_owned(),
            Report::Until(end) => format!("until {}\n", end.as_nanos()),
            // The text of an error may have more than one line.
            Report::Lost(cause) => format!("lost {}\n", visible(cause)),
        }
    }

    pub(crate) fn read(line: &str) -> Option<Report> {
        match line.split_once(' ') {
            None if line == "held" => Some(Report::Held),
            Some(("until", nanos)) => {
                nanos.parse().ok().map(|nanos| Report::Until(Moment::from_nanos(nanos)))
            }
            Some(("lost", cause)) => Some(Report::Lost(cause.to_owned())),
            _ => None,
        }
    }
}

/// The line that says that the release is still to come.
pub(crate) const WAITS: &str = "waits\n";
/// The most callers that a request names: a script and the copies that it makes of itself.
const MOST_CALLERS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_read_back_and_others_are_ignored() {
        let follow = |callers| Request::Follow { tag: "a".repeat(32), callers };
        let callers = vec!["7.8".parse().unwrap(), "9.10".parse().unwrap()];
        for request in [Request::Release, follow(Vec::new()), follow(callers)] {
            assert_eq!(Request::read(request.line().trim_end()), Some(request));
        }
        for refusal in [Refusal::Over, Refusal::Full] {
            assert_eq!(Refusal::read(refusal.line().as_bytes()), Some(refusal));
            assert_eq!(Report::read(refusal.line().trim_end()), None);
        }
        for report in
            [Report::Held, Report::Until(Moment::from_nanos(7)), Report::Lost("it was broken".to_owned())]
        {
            assert_eq!(Report::read(report.line().trim_end()), Some(report));
        }
        for nonsense in ["", "released", "until", "until x", "follow", "follow a b", "held 1"] {
            assert_eq!((Request::read(nonsense), Report::read(nonsense)), (None, None), "{nonsense}");
        }
    }
}
