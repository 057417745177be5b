//! The step from a call of the asynchronous API to a call that blocks.
//!
//! Ground rules: nothing is decided here. The list of all such calls is in `mirrors.rs`. A type of this
//! module has `block_on`, which runs a future on the shared runtime, `block_on_change` for calls that change a value
//! and can be interrupted, and `consume` if a call ends it.

use std::future::Future;
use std::time::Duration;

use leasehold_core::deadlock::Deadlock;
use leasehold_core::{BreakOutcome, ClaimInfo, Finding, Snapshot};

use crate::coord::{BarrierWaitResult, Condition, FlightOutcome, Leader, VersionedValue, WaitOutcome};
use crate::lock::TransferToken;

/// A result of the asynchronous API, with the type that it has in this module.
pub(super) trait IntoTwin {
    type Twin;

    fn into_twin(self) -> Self::Twin;
}

impl<T: IntoTwin> IntoTwin for Option<T> {
    type Twin = Option<T::Twin>;

    fn into_twin(self) -> Self::Twin {
        self.map(T::into_twin)
    }
}

impl<T: IntoTwin> IntoTwin for (T, WaitOutcome) {
    type Twin = (T::Twin, WaitOutcome);

    fn into_twin(self) -> Self::Twin {
        (self.0.into_twin(), self.1)
    }
}

/// Types that are the same here and there.
macro_rules! same {
    ($($kind:ty),* $(,)?) => {$(
        impl IntoTwin for $kind {
            type Twin = $kind;

            fn into_twin(self) -> $kind {
                self
            }
        }
    )*};
}

same!(
    (),
    bool,
    u32,
    BarrierWaitResult,
    BreakOutcome,
    Condition,
    FlightOutcome,
    Leader,
    Snapshot,
    TransferToken,
    VersionedValue,
    Vec<ClaimInfo>,
    Vec<Deadlock>,
    Vec<Finding>,
);

/// Returns the result of a future, or `None` after `limit`.
pub(super) async fn within<T>(limit: Duration, waiting: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, waiting).await.ok()
}

/// Writes the methods of a type of this module from the signatures of the asynchronous one.
///
/// | line | the asynchronous method |
/// |---|---|
/// | `call name(a: &A, b: B) -> C;` | `async fn name(&self, a: &A, b: B) -> Result<C>` |
/// | `change name(a: &A) -> C;` | the same, where the store may be changed although the wait was interrupted |
/// | `call name[n](a: &A) -> C;` | `async fn name(&self, n: impl AsRef<str>, a: &A) -> Result<C>` |
/// | `plain name(a: A) -> C;` | `async fn name(&self, a: A) -> C` |
/// | `within name_within = name() -> C;` | `async fn name(&self) -> C`, which may wait for ever |
/// | `end name(a: A) -> C;` | `async fn name(self, a: A) -> Result<C>` |
/// | `make name(a: impl A) -> C;` | `fn name(&self, a: impl A) -> C`, which sends nothing |
/// | `set name(a: A);` | `fn name(self, a: A) -> Self` |
/// | `require name(a: A);` | `fn name(self, a: A) -> Result<Self>` |
///
/// A result is a type of this module where the asynchronous one has a twin here.
macro_rules! mirror {
    ($($twin:ty as $name:ident $(for $kind:ident)? { $($lines:tt)* })*) => {$(
        impl $(<$kind: crate::lock::kind::Kind>)? $twin {
            mirror! { @ $name $($lines)* }
        }
    )*};
    (@ $name:ident) => {};
    (
        @ $name:ident call $call:ident
        $([$named:ident])? ($($argument:ident: $(&$borrowed:ident)? $($owned:ident)?),*) -> $answer:ty; $($rest:tt)*
    ) => {
        #[doc = mirror!(@call $name $call)]
        ///
        /// # Errors
        /// As there, and `Interrupted` if the wait was [interrupted](crate::blocking::Interrupt).
        pub fn $call(
            &self,
            $($named: impl AsRef<str>,)?
            $($argument: $(&$borrowed)? $($owned)?),*
        ) -> Result<$answer> {
            $(let $named = $named.as_ref().to_owned();)?
            $(let $argument = $argument.to_owned();)*
            let done = self.block_on(stringify!($call), move |inner| async move {
                inner.$call($($named,)? $($(Borrow::<$borrowed>::borrow(&$argument))? $(<$owned>::from($argument))?),*).await
            });
            Ok(done?.into_twin())
        }
        mirror! { @ $name $($rest)* }
    };
    (
        @ $name:ident change $call:ident($($argument:ident: $(&$borrowed:ident)? $($owned:ident)?),*) -> $answer:ty;
        $($rest:tt)*
    ) => {
        #[doc = mirror!(@call $name $call)]
        ///
        /// # Errors
        /// As there, and `Interrupted` if the wait was [interrupted](crate::blocking::Interrupt). The call may
        /// then have taken effect, and the error [says so](crate::Error::may_have_happened).
        pub fn $call(&self, $($argument: $(&$borrowed)? $($owned)?),*) -> Result<$answer> {
            $(let $argument = $argument.to_owned();)*
            let done = self.block_on_change(stringify!($call), move |inner| async move {
                inner.$call($($(Borrow::<$borrowed>::borrow(&$argument))? $(<$owned>::from($argument))?),*).await
            });
            Ok(done?.into_twin())
        }
        mirror! { @ $name $($rest)* }
    };
    (@ $name:ident plain $call:ident($($argument:ident: $owned:ty),*) -> $answer:ty; $($rest:tt)*) => {
        #[doc = mirror!(@call $name $call)]
        ///
        /// # Errors
        /// `Unavailable` if the operating system gives the library no threads.
        pub fn $call(&self, $($argument: $owned),*) -> Result<$answer> {
            let done = self.block_on(stringify!($call), move |inner| async move {
                Ok(inner.$call($($argument),*).await)
            });
            Ok(done?.into_twin())
        }
        mirror! { @ $name $($rest)* }
    };
    (@ $name:ident end $call:ident($($argument:ident: $(&$borrowed:ident)? $($owned:ident)?),*) -> $answer:ty; $($rest:tt)*) => {
        #[doc = mirror!(@call $name $call)]
        ///
        /// # Errors
        /// As there.
        pub fn $call(self, $($argument: $(&$borrowed)? $($owned)?),*) -> Result<$answer> {
            $(let $argument = $argument.to_owned();)*
            let done = self.consume(stringify!($call), move |inner| async move {
                inner.$call($($(Borrow::<$borrowed>::borrow(&$argument))? $(<$owned>::from($argument))?),*).await
            });
            Ok(done?.into_twin())
        }
        mirror! { @ $name $($rest)* }
    };
    (@ $name:ident make $make:ident($($argument:ident: $kind:ty),*) -> $made:ty; $($rest:tt)*) => {
        #[doc = mirror!(@link $name $make "Returns what [`" "`] returns, for threads that block.")]
        pub fn $make(&self, $($argument: $kind),*) -> $made {
            self.asynchronous().$make($($argument),*).into_twin()
        }
        mirror! { @ $name $($rest)* }
    };
    (@ $name:ident set $set:ident($argument:ident: $kind:ty); $($rest:tt)*) => {
        #[doc = mirror!(@link $name $set "Changes a setting, as [`" "`].")]
        #[must_use]
        pub fn $set(self, $argument: $kind) -> Self {
            self.map(|inner| inner.$set($argument))
        }
        mirror! { @ $name $($rest)* }
    };
    (@ $name:ident require $require:ident($($argument:ident: $kind:ty)?); $($rest:tt)*) => {
        #[doc = mirror!(@link $name $require "Requires a promise of the store, as [`" "`].")]
        ///
        /// # Errors
        /// `Unsupported` if this connection cannot give it. Nothing is sent.
        pub fn $require(self, $($argument: $kind)?) -> Result<Self> {
            self.try_map(|inner| inner.$require($($argument)?))
        }
        mirror! { @ $name $($rest)* }
    };
    (@ $name:ident within $within:ident = $call:ident() -> $answer:ty; $($rest:tt)*) => {
        #[doc = mirror!(@link $name $call "Calls [`" "`] and blocks until it returns, for up to `limit`; `None` if it has not returned by then.")]
        ///
        /// # Errors
        /// `Unavailable` if the operating system gives the library no threads.
        pub fn $within(&self, limit: Duration) -> Result<Option<$answer>> {
            self.block_on(stringify!($call), move |inner| async move { Ok(within(limit, inner.$call()).await) })
        }
        mirror! { @ $name $($rest)* }
    };
    (@call $name:ident $call:ident) => {
        mirror!(@link $name $call "Calls [`" "`] and blocks until it returns.")
    };
    (@link $name:ident $method:ident $before:literal $after:literal) => {
        concat!(
            $before, stringify!($name), "::", stringify!($method), $after,
            "\n\n[`", stringify!($name), "::", stringify!($method), "`]: crate::",
            stringify!($name), "::", stringify!($method)
        )
    };
}

pub(super) use mirror;
