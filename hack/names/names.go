package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

const file = "hack/names/names.yaml"

// kind says what a name may look like. Every pattern keeps to characters that need no quotes in a shell, in YAML, in Go
// and in Markdown.
type kind struct {
	name    string
	pattern *regexp.Regexp
	longest int
	wants   string
}

const (
	label = `[a-z0-9]([a-z0-9-]*[a-z0-9])?`
	host  = label + `(\.` + label + `)*\.[a-z]([a-z0-9-]*[a-z0-9])?`
	url   = `https://` + host + `(:[0-9]+)?(/[A-Za-z0-9._~-]*[A-Za-z0-9_~-])*`
	parts = `(/[a-z0-9]+([._-][a-z0-9]+)*)+`
)

// kinds are the names in the order of names.yaml.
var kinds = []kind{
	{"module", regexp.MustCompile(`^` + host + parts + `$`), 100,
		"a module path in lower case that begins with a host, as github.com/OWNER/berth"},
	// The driver of dynamic resources is dra.DOMAIN, which may have 63 characters, and its sockets' paths 107.
	{"domain", regexp.MustCompile(`^` + host + `$`), 50,
		"a DNS name in lower case with a dot, of at most 50 characters, as berth.OWNER.org"},
	{"images", regexp.MustCompile(`^(localhost|` + host + `|` + label + `:[0-9]+|` + host + `:[0-9]+)` + parts + `$`), 100,
		"a registry and a path in lower case, as ghcr.io/OWNER"},
	{"homepage", regexp.MustCompile(`^` + url + `$`), 100, "an https URL without a slash at its end, as https://github.com/OWNER/berth"},
	{"apt", regexp.MustCompile(`^` + url + `$`), 100, "an https URL without a slash at its end, as https://OWNER.org/apt"},
	{"contact", regexp.MustCompile(`^[a-z0-9][a-z0-9._+-]*@` + host + `$`), 100, "an email address in lower case, as security@OWNER.org"},
}

// reserved domains belong to Kubernetes, which refuses them in some objects of others.
var reserved = regexp.MustCompile(`(^|\.)(kubernetes|k8s)\.io$`)

// check returns what is wrong with a value.
func (k kind) check(value string) error {
	switch {
	case value == "":
		return fmt.Errorf("%s: it is empty, and must be %s", k.name, k.wants)
	case !k.pattern.MatchString(value) || len(value) > k.longest:
		return fmt.Errorf("%s: %q must be %s (at most %d characters)", k.name, value, k.wants, k.longest)
	case k.name == "domain" && reserved.MatchString(value):
		return fmt.Errorf("domain: %q belongs to Kubernetes; choose a domain of your own", value)
	case k.name == "module" && regexp.MustCompile(`/v[0-9]+$`).MatchString(value):
		return fmt.Errorf("module: %q ends in a major version; leave it out", value)
	}
	return nil
}

// reachable reports whether strangers may reach the host of a name: it is not of this machine, of a private network, or reserved for
// examples.
func reachable(name string) bool {
	name = strings.TrimPrefix(name, "https://")
	name = name[strings.IndexByte(name, '@')+1:]
	return !unreachable.MatchString(regexp.MustCompile(`^[^:/]*`).FindString(name))
}

var unreachable = regexp.MustCompile(`^[^.]*$|(^|\.)(localhost|invalid|test|local|internal|home\.arpa|example(\.(com|net|org))?)$`)

// names are the values by kind.
type names map[string]string

// validate checks all names, and that no two are the same: then their places could not be told apart.
func (n names) validate() error {
	seen := map[string]string{}
	for _, k := range kinds {
		value := n[k.name]
		if err := k.check(value); err != nil {
			return err
		}
		if other, ok := seen[value]; ok {
			return fmt.Errorf("%s: %q is also %s; each name needs a value of its own", k.name, value, other)
		}
		seen[value] = k.name
	}
	return nil
}

// names reads names.yaml.
func (r repository) names() (names, error) {
	text, err := os.ReadFile(r.path(file))
	if err != nil {
		return nil, err
	}
	n := names{}
	if err := yaml.UnmarshalStrict(text, &n); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(n) != len(kinds) {
		return nil, fmt.Errorf("%s: it has %d names, and must have %s", file, len(n), allNames())
	}
	if err := n.validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

func allNames() string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.name)
	}
	return strings.Join(all, ", ")
}

// parse reads the value of -set, and returns all names after it.
func parse(now names, text string) (names, error) {
	next, given := names{}, map[string]bool{}
	for name, value := range now {
		next[name] = value
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			return nil, fmt.Errorf("-set: %q must be NAME=VALUE, with a NAME of %s", pair, allNames())
		case now[name] == "":
			return nil, fmt.Errorf("-set: there is no name %q; there are %s", name, allNames())
		case given[name]:
			return nil, fmt.Errorf("-set: %s is given twice", name)
		}
		given[name], next[name] = true, value
	}
	if err := next.validate(); err != nil {
		return nil, fmt.Errorf("-set: %w", err)
	}
	return next, nil
}
