// Package vector parses the JSON shapes that the recordings of all suites share, and converts
// them to the managers' types: machines, pods, hints, sets of nodes, feature gates.
//
// Words:
//
//   - recorded: in the reference's form, as snake_case JSON.
//   - absent, null, empty: three different things in a recording. An absent key and
//     a null key both decode to a nil slice or map; an empty list or object decodes
//     to one that is not nil.
package vector
