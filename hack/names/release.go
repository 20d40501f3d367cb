package main

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

const (
	number = `(0|[1-9][0-9]*)`
	part   = `(` + number + `|[0-9]*[a-z][0-9a-z]*)`
)

var (
	semver  = regexp.MustCompile(`^` + number + `\.` + number + `\.` + number + `(-` + part + `(\.` + part + `)*)?$`)
	heading = regexp.MustCompile(`(?m)^## (.*)$`)
	// imageField finds what may be an image: in manifests, in kustomizations and in a chart's values.
	imageField = regexp.MustCompile(`\b(image|newName|name|repository):\s*["']?([^\s"',{}]+)`)
	// versionField finds the versions in these, and those of a chart itself.
	versionField = regexp.MustCompile(`(?:\b(newTag|tag|digest|appVersion)|^(version)): ["']?([^\s"',{}]+)`)
	manifest     = regexp.MustCompile(`^deploy/.*\.ya?ml$`)
	programs     = regexp.MustCompile(`(?m)^for program in (.*berthd.*); do$`)
)

// checkRelease checks what a tag of the next commit needs, all of it before it fails.
func (r repository) checkRelease(n names) error {
	version, findings, err := r.version()
	if err != nil {
		return err
	}
	for _, find := range []func() ([]string, error){
		r.uncommitted,
		func() ([]string, error) { return placeholders(n), nil },
		func() ([]string, error) { return r.changelog(version) },
		func() ([]string, error) { return r.images(n["images"], version) },
	} {
		found, err := find()
		if err != nil {
			return err
		}
		findings = append(findings, found...)
	}
	// These tests name each link that leads nowhere, and each line that says that something is left to do.
	if err := r.call("go", "test", "-count=1", "-run", "^(TestLinks|TestNothingIsLeftUndone)$", "./hack/archtest"); err != nil {
		findings = append(findings, err.Error()+": mend what the test names")
	}
	for _, f := range findings {
		fmt.Fprintln(r.out, "-", f)
	}
	if len(findings) > 0 {
		return fmt.Errorf("%s cannot be released: %d findings", version, len(findings))
	}
	fmt.Fprintf(r.out, "%s can be released: git tag v%s\n", version, version)
	return nil
}

func (r repository) version() (version string, findings []string, err error) {
	const place = "api/version/VERSION"
	text, err := os.ReadFile(r.path(place))
	if err != nil {
		return "", nil, err
	}
	version = strings.TrimSpace(string(text))
	if !semver.MatchString(version) {
		return version, []string{fmt.Sprintf("%s: %q must be a number of semantic versioning, as 0.1.0 or 0.2.0-rc.1", place, version)}, nil
	}
	tag, err := r.git("tag", "--list", "v"+version)
	if err == nil && tag != "" {
		findings = append(findings, fmt.Sprintf("%s: %s is released, the tag v%s exists; raise the number", place, version, version))
	}
	return version, findings, err
}

func (r repository) uncommitted() ([]string, error) {
	changes, err := r.changes()
	if err != nil || changes == "" {
		return nil, err
	}
	return []string{"the tree has changes; commit them, because a tag names a commit:\n" + strings.TrimRight(changes, "\n")}, nil
}

// placeholders finds names that the owner has not chosen yet.
func placeholders(n names) (findings []string) {
	for _, k := range kinds {
		if !reachable(n[k.name]) {
			findings = append(findings, fmt.Sprintf("%s: %s is %s, a placeholder; choose %s: go run ./hack/names -set %s=...", file, k.name,
				n[k.name], k.wants, k.name))
		}
	}
	return findings
}

func (r repository) changelog(version string) ([]string, error) {
	const place = "CHANGELOG.md"
	data, err := os.ReadFile(r.path(place))
	if err != nil {
		return nil, err
	}
	text := string(data)
	sections := heading.FindAllStringSubmatchIndex(text, -1)
	if len(sections) == 0 {
		return []string{fmt.Sprintf("%s: there is no section; write one with the heading ## %s", place, version)}, nil
	}
	title, end := text[sections[0][2]:sections[0][3]], len(text)
	if len(sections) > 1 {
		end = sections[1][0]
	}
	switch {
	case title != version && strings.HasPrefix(title, version+" "):
		return []string{fmt.Sprintf("%s: the heading is %q; it must be ## %s in a release", place, "## "+title, version)}, nil
	case title != version:
		return []string{fmt.Sprintf("%s: the first section is %q; write one for %s above it", place, title, version)}, nil
	case strings.TrimSpace(text[sections[0][1]:end]) == "":
		return []string{fmt.Sprintf("%s: the section %s is empty; write what has changed", place, version)}, nil
	}
	return nil, nil
}

// images checks that the manifests use the images of this release, and no other ones of berth.
func (r repository) images(prefix, version string) ([]string, error) {
	script, err := os.ReadFile(r.path("hack/image.sh"))
	if err != nil {
		return nil, err
	}
	m := programs.FindAllStringSubmatch(string(script), -1)
	if m == nil {
		return nil, fmt.Errorf("hack/image.sh: no line names the programs that have an image: for program in ...; do")
	}
	made := strings.Fields(m[len(m)-1][1])
	files, err := r.files()
	if err != nil {
		return nil, err
	}
	var findings []string
	seen := 0
	for _, name := range files {
		// Pods of examples have images of their users.
		if !manifest.MatchString(name) || strings.Contains(name, "/examples/") {
			continue
		}
		text, err := os.ReadFile(r.path(name))
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(string(text), "\n") {
			line, _, _ = strings.Cut(line, "#")
			found, ours := imageFindings(line, prefix, version, made)
			if path.Base(name) == "Chart.yaml" || !strings.HasPrefix(line, "version:") { // which is another one elsewhere
				found = append(found, versionFindings(line, version)...)
			}
			for _, f := range found {
				findings = append(findings, fmt.Sprintf("%s:%d: %s", name, i+1, f))
			}
			seen += ours
		}
	}
	if seen == 0 {
		findings = append(findings, "deploy/: no manifest has an image of "+prefix+"; names.yaml and the manifests must agree")
	}
	return findings, nil
}

// imageFindings checks a line of a manifest, and counts its images of berth.
func imageFindings(line, prefix, version string, made []string) (findings []string, ours int) {
	for _, m := range imageField.FindAllStringSubmatch(line, -1) {
		field, image := m[1], m[2]
		name, tag := cutImage(image)
		program, inPrefix := strings.CutPrefix(name, prefix+"/")
		switch {
		case field == "repository":
			if image != prefix {
				findings = append(findings, fmt.Sprintf("the repository %s is not %s, which %s has", image, prefix, file))
			}
		case inPrefix && slices.Contains(made, program):
			ours++
			if tag != "" && tag != version {
				findings = append(findings, fmt.Sprintf("the image %s has the tag %s, and the version is %s", name, tag, version))
			}
		case field != "name" || strings.Contains(name, "/") && strings.HasPrefix(path.Base(name), "berth"):
			findings = append(findings, fmt.Sprintf("the image %s is not one of %s/{%s}, which make release makes", name, prefix,
				strings.Join(made, ",")))
		}
	}
	return findings, ours
}

// cutImage cuts an image before its tag, or its digest, which comes before the tag.
func cutImage(image string) (name, tag string) {
	name, digest, _ := strings.Cut(image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i+1:]
	}
	return name, cmp.Or(digest, tag)
}

// versionFindings checks the versions of a line.
func versionFindings(line, version string) (findings []string) {
	for _, m := range versionField.FindAllStringSubmatch(line, -1) {
		if m[3] != version {
			findings = append(findings, fmt.Sprintf("%s is %s, and the version is %s", m[1]+m[2], m[3], version))
		}
	}
	return findings
}
