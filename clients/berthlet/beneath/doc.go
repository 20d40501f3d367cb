// Package beneath opens files and directories below a directory without following
// symbolic links: what containers can write to, they can fill with links, and
// replace while it is opened.
//
// Words:
//
//   - root: a directory that only trusted people can replace. Its own path may have
//     links in it.
//   - path: what is looked for below the root. It is local (path/filepath.IsLocal),
//     and none of its elements may be a link.
//
// Invariants: a path is opened element by element, each by the descriptor of its
// parent (O_NOFOLLOW, no ".."), so a change of the tree meanwhile can make an open
// fail, and never leads it outside; what is opened is used by its descriptor only.
// An error names the element that is refused.
package beneath
