//! Tests of the program `portcullis-lab`, with one module for each subject. They are one program, so that their dependencies are linked once.

mod demo;
mod output;
mod scale;
mod sim;
mod ycsb;
