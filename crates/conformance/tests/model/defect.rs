//! The ways in which the model can be wrong.

/// One fault that a backend could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    // Of the profile.
    ProfilesDiffer,
    FirstCallIsBusy,
    AdmitsWhatItExcludes,
    ForgetsTheFence,
    PollsWithoutHint,
    PollsInDisguise,
    SessionRunsOut,
    LeaseEndsEarly,
    LeaseNeverEnds,
    // Of what is decided at once.
    GrantsAtOnceInSecret,
    DeclinesWithAPlace,
    PassesTheQueueAtOnce,
    // Of direct requests.
    GrantsDirectlyInSecret,
    DirectRequestLeavesAPlace,
    DirectRequestComesLate,
    DirectReleaseFreesNothing,
    DirectReleaseWaitsForItsCaller,
    // Of the admission.
    AdmitsOneTooMany,
    WriterLeavesRoom,
    OwnCapacityOnly,
    ForgetsOtherCapacities,
    // Of what is repeated.
    SecondAskIsSecondClaim,
    ReleasesForEver,
    RenewalReplacesFence,
    EveryCallTakesAPlace,
    RepeatGoesLast,
    // Of what has ended.
    RenewalResurrects,
    RenewalGrants,
    RenewalDoesNothing,
    RenewalShortens,
    // Of what is left behind.
    BusyLeavesAPlace,
    ReleaseIgnoresWaiting,
    GrantIsDroppedAtTheEnd,
    ListsWhatIsIdle,
    // Of the answers.
    BlocksBeyondPatience,
    AskedAtTheAnswer,
    CutsTheTtl,
    // Of the order.
    FenceRepeats,
    FenceBeginsAgain,
    LastComesFirst,
    PassesTheQueue,
    CountsOnlyHolders,
    // Of whose claim it is.
    ReleasesAnyClaim,
    ReleasesInSilence,
    ReleasesOnAnyResource,
    WaiterEndsTheHolder,
    ReleaseEndsAll,
    // Of waking.
    NeverWakes,
    ChecksBeforeItSubscribes,
    WakesOneOnly,
    LeavesInSilence,
    WakesTheFirstArrival,
    NeverChecksAgain,
    PlaceIsForEver,
    // Of what is shown.
    HidesTheNote,
    CutsTheNote,
    WatchersSleep,
    WatchersIgnoreThePast,
    WatchersStay,
    WatchersMissTheEnd,
    PagesBeginAgain,
    FoldsNames,
    CutsNames,
    // Of batches.
    AnswersBackwards,
    DecidesBeforeItActs,
    AnswersNothingWithSomething,
    // Of processes.
    FencesPerProcess,
    DoubleGrantsAcrossProcesses,
    ReleaseIsDelayed,
    DeathGoesUnnoticed,
    // Of registers.
    RegistersDiffer,
    ReportsAnotherStamp,
    StaleStampsWrite,
    StampNamesTheValue,
    ReadsText,
    TakesAnyLength,
    RegistersAreLocks,
    ChecksBeforeItWrites,
    ReadsThePast,
    WritesByHalf,
    ChangesInSilence,
    WaitsForTheNextChange,
    StaysBeyondPatience,
    ForgetsEarly,
    NeverForgets,
    KeepsInSilence,
    RemovalsAreAlike,
    EndsInSilence,
}
