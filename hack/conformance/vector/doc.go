// Package vector reads the JSON shapes that the recorded decisions of all suites
// share, and turns them into the managers' types: machines, pods, hints, sets of
// nodes, feature gates.
//
// Words:
//
//   - recorded: as the reference said it, in snake_case JSON.
//   - absent, null, empty: three different things in a recording. A key that is
//     absent and one that is null decode alike, to a nil slice or map; an empty
//     list or object decodes to one that is not nil.
package vector
