//! The laws of all stores, on the store in memory, in each way of waiting and of ordering.

use std::sync::Arc;

use leasehold::local::MemoryBackend;
use leasehold_conformance::Subject;
use leasehold_core::Backend;

/// One store. It lives in this process, so every connection is the store itself.
struct Memory(Arc<MemoryBackend>);

impl Memory {
    fn new(backend: MemoryBackend) -> Self {
        Memory(Arc::new(backend))
    }
}

#[async_trait::async_trait]
impl Subject for Memory {
    async fn open(&self) -> Option<Arc<dyn Backend>> {
        Some(self.0.clone())
    }
}

mod notifying {
    use super::*;
    leasehold_conformance::suite!(Memory::new(MemoryBackend::new()));
}

mod polling {
    use super::*;
    leasehold_conformance::suite!(Memory::new(MemoryBackend::new().polling()));
}

mod unordered {
    use super::*;
    leasehold_conformance::suite!(Memory::new(MemoryBackend::new().unordered()));
}

mod unordered_polling {
    use super::*;
    leasehold_conformance::suite!(Memory::new(MemoryBackend::new().unordered().polling()));
}
