// Package table prints rows and fields for people, and spells amounts as people read them.
//
// Words:
//
//   - wide column: one that is printed on demand only.
//   - field: a name with one or several values under each other.
//
// Invariants: columns are aligned by characters, two blanks apart; no line ends with a blank; what is empty is a dash in
// a table and left out of fields; what a terminal would act on is spelled so that it is shown.
package table
