//! The software NIC keeps every promise of the conformance suite when the polling thread drives it.

use portcullis_softnic::SoftNic;

portcullis_conformance::conformance_tests!(SoftNic::self_driven());
