// Package table prints rows, fields and amounts for people.
//
// Words:
//
//   - wide column: one that is only printed on request.
//   - field: a name with one or several values under each other.
//
// Invariants: columns are aligned by characters, two blanks apart. No line ends with a blank. An
// empty value is a dash in a table and is omitted from fields. Control characters are escaped.
package table
