//! Tests of the cost models, with one module for each model.

mod connectx5;
mod model_1rma;
