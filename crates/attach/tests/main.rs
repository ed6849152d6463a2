//! Tests of attaching, with one module for each subject. They are one program, so that their dependencies are linked once.

mod attach;
mod certificates;
mod hostile;
mod hostile_node;
mod identity;
mod late;
mod listener;
mod rig;
