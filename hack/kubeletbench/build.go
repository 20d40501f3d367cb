package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const source = "hack/kubeletbench"

// unserved are modules of a version of Kubernetes that the module proxy does not have: another version of the module, or nothing if
// no package of it is linked. No package that is measured is in them.
var unserved = map[string]map[string]string{
	"v1.38.0-beta.0": {"k8s.io/apiextensions-api": "", "k8s.io/ktesting": "", "sigs.k8s.io/structured-merge-diff/v7": "v7.0.0"},
}

// build compiles berth's program and one for each kubelet.
func build(ctx context.Context, dir, toolchain string, kubelets []string) ([]*program, error) {
	environ := append(os.Environ(), "GOTOOLCHAIN="+toolchain, "GOWORK=off")
	compile := func(from, name string, args ...string) (*program, error) {
		p := &program{name: name, path: filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))}
		cmd := command(ctx, from, "go", append([]string{"build", "-o", p.path}, args...)...)
		cmd.Env = environ
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("build %s: %w", name, err)
		}
		return p, nil
	}
	berth, err := compile("", "berth", "./"+source+"/berth")
	if err != nil {
		return nil, err
	}
	programs := []*program{berth}
	for _, version := range kubelets {
		module := filepath.Join(dir, version)
		if err := writeModule(ctx, module, version, environ); err != nil {
			return nil, fmt.Errorf("module for Kubernetes %s: %w", version, err)
		}
		p, err := compile(module, "kubelet "+strings.TrimPrefix(version, "v"), "-mod=mod", "./"+source+"/kubelet")
		if err != nil {
			return nil, err
		}
		programs = append(programs, p)
	}
	return programs, nil
}

// writeModule makes a module of the kubelet's program and the cases, with the versions of modules that Kubernetes has. It has berth's
// name, so that the packages have the names that they have in berth.
func writeModule(ctx context.Context, dir, version string, environ []string) error {
	cmd := command(ctx, "", "go", "mod", "download", "-json", "k8s.io/kubernetes@"+version)
	cmd.Env = environ
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var kubernetes struct{ Dir string }
	if err := json.Unmarshal(out, &kubernetes); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(kubernetes.Dir, "go.mod"))
	if err != nil {
		return err
	}
	sums, err := os.ReadFile(filepath.Join(kubernetes.Dir, "go.sum"))
	if err != nil {
		return err
	}
	files := map[string][]byte{"go.mod": []byte(goMod(string(text), version)), "go.sum": sums}
	for path, instead := range unserved[version] {
		if instead == "" {
			files[filepath.Join("empty", path, "go.mod")] = []byte("module " + path + "\n")
		}
	}
	for _, pattern := range []string{"cases/*.go", "kubelet/*.go"} {
		paths, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil || len(paths) == 0 {
			return fmt.Errorf("no files %s; run this at the root of the repository", filepath.Join(source, pattern))
		}
		for _, path := range paths {
			if files[path], err = os.ReadFile(path); err != nil {
				return err
			}
		}
	}
	for path, content := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

var (
	moduleLine = regexp.MustCompile(`(?m)^module .*$`)
	staging    = regexp.MustCompile(`(?m)^(\s*)(\S+) => \./staging/src/\S+$`)
)

// goMod makes a module that imports Kubernetes of Kubernetes' own go.mod. Kubernetes replaces some modules by directories that are
// not in its module, and those are modules with a version of their own.
func goMod(kubernetes, version string) string {
	text := moduleLine.ReplaceAllString(kubernetes, "module github.com/berthd/berth")
	text = staging.ReplaceAllStringFunc(text, func(line string) string {
		m := staging.FindStringSubmatch(line)
		if instead, ok := unserved[version][m[2]]; ok && instead == "" {
			return m[1] + m[2] + " => ./empty/" + m[2]
		}
		return m[1] + m[2] + " => " + m[2] + " v0." + strings.TrimPrefix(version, "v1.")
	})
	text += "\nrequire k8s.io/kubernetes " + version + "\n"
	for _, path := range slices.Sorted(maps.Keys(unserved[version])) {
		if instead := unserved[version][path]; instead != "" {
			text += "\nreplace " + path + " => " + path + " " + instead + "\n"
		}
	}
	return text
}
