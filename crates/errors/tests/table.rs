//! Tests of the numbers and names of errors, on which programs in other languages rely.

use portcullis_errors::ErrorCode;
use std::collections::HashSet;

#[test]
fn no_two_codes_share_a_number_or_a_name_and_all_are_found_by_their_number() {
    let names: HashSet<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
    assert_eq!(names.len(), ErrorCode::ALL.len());
    assert!(ErrorCode::ALL.is_sorted_by(|one, next| one.number() < next.number()));
    for &code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_number(code.number()), Some(code));
        assert!(code.name().bytes().all(|letter| letter == b'-' || letter.is_ascii_lowercase()), "{code}");
    }
    assert_eq!(ErrorCode::from_number(0), None);
}

/// Users write their programs by the document: a number or a name that changes in it breaks these programs.
#[test]
fn the_document_has_each_code_as_it_is_and_no_other() {
    let document = include_str!("../../../docs/errors.md");
    let rows: Vec<_> = document.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let row = |code: &ErrorCode| {
        format!("| {} | `{code}` | {} | {} |", code.number(), code.fault(), code.meaning())
    };
    let rows_of_codes: Vec<_> = ErrorCode::ALL.iter().map(row).collect();
    assert_eq!(
        rows[1..],
        rows_of_codes,
        "bring docs/errors.md up to date; numbers and names only ever come to it"
    );
}
