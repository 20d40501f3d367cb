package main

import (
	"cmp"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// measure gives the figures of all packages. Packages of hack have none but the width of their lines: they are tools.
func measure(pkgs []pkg) (all []figure) {
	for _, p := range pkgs {
		if strings.HasPrefix(p.path, "hack/") {
			continue
		}
		arrows, back := p.arrows()
		all = append(all, figure{"lines", p.path, p.lines()}, figure{"names", p.path, p.names()})
		if arrows >= fewArrows {
			all = append(all, figure{"back", p.path, percent(back, arrows)})
		}
		for _, t := range p.declared() {
			all = append(all, figure{"methods", p.path + "." + t.name, t.methods})
			if !t.given {
				all = append(all, figure{"fields", p.path + "." + t.name, t.fields})
			}
		}
	}
	return all
}

// fewArrows is how many arrows a package has at least for a share of them to say something.
const fewArrows = 10

func percent(part, whole int) int {
	if whole == 0 {
		return 0
	}
	return (100*part + whole - 1) / whole
}

// lines counts the lines of the files, with comments.
func (p pkg) lines() (n int) {
	for _, f := range p.files {
		n += p.fset.File(f.FileStart).LineCount()
	}
	return n
}

// names counts the exported names of the package, without methods and fields.
func (p pkg) names() (n int) {
	for _, name := range p.types.Scope().Names() {
		if token.IsExported(name) && p.own(p.types.Scope().Lookup(name)) {
			n++
		}
	}
	return n
}

// own reports whether an object is declared in a file that is not generated.
func (p pkg) own(o types.Object) bool {
	return slices.ContainsFunc(p.files, func(f *ast.File) bool { return f.FileStart <= o.Pos() && o.Pos() < f.FileEnd })
}

// declaration is a type of a package.
type declaration struct {
	name            string
	methods, fields int
	// given is whether its fields are those of a file or message: all of them have tags.
	given bool
}

func (p pkg) declared() (all []declaration) {
	for _, name := range p.types.Scope().Names() {
		o, ok := p.types.Scope().Lookup(name).(*types.TypeName)
		if !ok || !p.own(o) {
			continue
		}
		named, ok := o.Type().(*types.Named)
		if !ok {
			continue
		}
		d := declaration{name: name, methods: named.NumMethods()}
		if s, ok := named.Underlying().(*types.Struct); ok {
			d.fields = s.NumFields()
			d.given = configuration(p.path)
			for i := range s.NumFields() {
				d.given = d.given || s.Tag(i) != ""
			}
		}
		all = append(all, d)
	}
	return all
}

// configuration reports whether the structs of a package are what people write in files and flags.
func configuration(path string) bool {
	return path == "api/config" || strings.HasPrefix(path, "api/config/")
}

// arrows counts the arrows between the files, and those that run back.
func (p pkg) arrows() (all, back int) {
	uses := map[string]map[string]bool{}
	for _, f := range p.files {
		from := p.file(f.Package)
		uses[from] = map[string]bool{}
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if o := p.info.Uses[id]; o != nil && o.Pkg() == p.types && p.own(o) {
				if to := p.file(o.Pos()); to != from {
					uses[from][to] = true
				}
			}
			return true
		})
	}
	for _, to := range uses {
		all += len(to)
	}
	at := map[string]int{}
	for i, file := range order(uses) {
		at[file] = i
	}
	for from, to := range uses {
		for file := range to {
			if at[file] < at[from] {
				back++
			}
		}
	}
	return all, back
}

// order puts files in an order in which few arrows run back. It takes the file that nothing left points to from the front, the
// one that points to nothing left from the back, and where there is neither, the one with the most arrows out over those in.
func order(uses map[string]map[string]bool) []string {
	left := map[string]bool{}
	for file := range uses {
		left[file] = true
	}
	var front, rear []string
	for len(left) > 0 {
		type candidate struct {
			file    string
			out, in int
		}
		var all []candidate
		for file := range left {
			c := candidate{file: file}
			for other := range left {
				if uses[file][other] {
					c.out++
				}
				if uses[other][file] {
					c.in++
				}
			}
			all = append(all, c)
		}
		slices.SortFunc(all, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(b.out-b.in, a.out-a.in), cmp.Compare(a.file, b.file))
		})
		pick := all[0]
		if i := slices.IndexFunc(all, func(c candidate) bool { return c.out == 0 }); i >= 0 {
			pick = all[i]
			rear = append(rear, pick.file)
		} else {
			if i := slices.IndexFunc(all, func(c candidate) bool { return c.in == 0 }); i >= 0 {
				pick = all[i]
			}
			front = append(front, pick.file)
		}
		delete(left, pick.file)
	}
	slices.Reverse(rear)
	return append(front, rear...)
}
