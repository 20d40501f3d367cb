// Package beneath opens files and directories below a directory without following symbolic links.
// Containers can create links in their directories, and replace files while they are opened.
//
// Words:
//
//   - root: a directory that only trusted users can replace. Its own path may
//     contain links.
//   - path: the path to open below the root. It is local (path/filepath.IsLocal),
//     and none of its elements may be a link.
//
// Invariants: a path is opened element by element, each relative to the descriptor of its parent
// (O_NOFOLLOW, no ".."). A concurrent change of the tree can therefore make an open fail, but
// cannot lead it outside. An opened file is only used by its descriptor. An error names the
// refused element.
package beneath
