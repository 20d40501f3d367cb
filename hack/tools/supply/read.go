package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
	"golang.org/x/mod/module"
)

// part is a module, or Go's own standard library.
type part struct {
	path, version, sum string
	// licences are those of its files, by SPDX name; texts are the files, by name.
	licences []string
	texts    map[string]string
}

// program is an executable with what it is made of.
type program struct {
	name, version string
	parts         []string // paths
}

// contents are programs and their parts, both in the order of their names.
type contents struct {
	programs            []program
	modules             []part
	goVersion, platform string
}

// read finds out what executables are made of.
func read(files []string) (c contents, err error) {
	if len(files) == 0 {
		return c, errors.New("expected programs")
	}
	classify, err := assets.DefaultClassifier()
	if err != nil {
		return c, err
	}
	folders, err := exec.Command("go", "env", "GOMODCACHE", "GOROOT").Output() // not runtime.GOROOT: with -trimpath it is empty
	if err != nil {
		return c, fmt.Errorf("ask where modules are: %w", err)
	}
	cache, goroot, _ := strings.Cut(strings.TrimSpace(string(folders)), "\n")
	parts := map[string]part{}
	for _, f := range files {
		info, err := buildinfo.ReadFile(f)
		if err != nil {
			return c, fmt.Errorf("read what %s is made of: %w", f, err)
		}
		p := program{name: filepath.Base(f), version: info.Main.Version}
		parts["std"] = part{path: "std", version: info.GoVersion}
		p.parts = append(p.parts, "std")
		for _, d := range info.Deps {
			if d.Replace != nil {
				return c, fmt.Errorf("%s: %s is replaced by %s: its licence is not looked for there", f, d.Path, d.Replace.Path)
			}
			parts[d.Path] = part{path: d.Path, version: d.Version, sum: d.Sum}
			p.parts = append(p.parts, d.Path)
		}
		c.goVersion, c.platform = info.GoVersion, ""
		for _, s := range info.Settings {
			if s.Key == "GOOS" || s.Key == "GOARCH" {
				c.platform = strings.Trim(c.platform+"/"+s.Value, "/")
			}
		}
		slices.Sort(p.parts)
		c.programs = append(c.programs, p)
	}
	slices.SortFunc(c.programs, func(a, b program) int { return strings.Compare(a.name, b.name) })
	for _, p := range parts {
		dir := goroot
		if p.path != "std" {
			if dir, err = moduleDir(cache, p); err != nil {
				return c, err
			}
		}
		if err := p.look(dir, classify); err != nil {
			return c, err
		}
		c.modules = append(c.modules, p)
	}
	slices.SortFunc(c.modules, func(a, b part) int { return strings.Compare(a.path, b.path) })
	return c, nil
}

// moduleDir is where a module's files are.
func moduleDir(cache string, p part) (string, error) {
	path, err := module.EscapePath(p.path)
	if err != nil {
		return "", err
	}
	version, err := module.EscapeVersion(p.version)
	return filepath.Join(cache, path+"@"+version), err
}

// look reads the files of a module that are about its licence.
func (p *part) look(dir string, classify *classifier.Classifier) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look for the licence of %s: %w", p.path, err)
	}
	p.texts = map[string]string{}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		about := false
		for _, begin := range []string{"LICENSE", "LICENCE", "COPYING", "NOTICE"} {
			about = about || strings.HasPrefix(name, begin)
		}
		if !about || !e.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		p.texts[e.Name()] = string(bytes.TrimSpace(text)) + "\n"
		for _, m := range classify.Match(text).Matches {
			if m.MatchType == "License" && !slices.Contains(p.licences, m.Name) {
				p.licences = append(p.licences, m.Name)
			}
		}
	}
	slices.Sort(p.licences)
	return nil
}
