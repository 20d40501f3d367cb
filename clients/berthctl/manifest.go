package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/podspec"
)

// manifest is the flags of verbs that read pods from files.
type manifest struct {
	files     []string
	recursive bool
	// strict refuses fields that are not understood.
	strict bool
	// generateUID makes a uid for a pod without one. A verb that changes nothing sets it.
	generateUID bool
	// explain names the fields that are not sent.
	explain bool
}

const filesUsage = "file with pods in YAML or JSON, directory of such files, or - for standard input; may be repeated"

// flags declares the flags of a verb that admits pods.
func (m *manifest) flags(f *pflag.FlagSet) {
	m.readFlags(f)
	f.BoolVar(&m.generateUID, "generate-uid", false, "give a pod without uid one made from its namespace and name")
}

// readFlags declares the flags of a verb that only reads files.
func (m *manifest) readFlags(f *pflag.FlagSet) {
	f.StringSliceVarP(&m.files, "filename", "f", nil, filesUsage)
	m.readingFlags(f)
}

// readingFlags declares how files are read.
func (m *manifest) readingFlags(f *pflag.FlagSet) {
	f.BoolVarP(&m.recursive, "recursive", "R", false, "read the directories within a directory, too")
	f.BoolVar(&m.strict, "strict", false, "refuse fields and resources that no pod has, instead of a warning")
}

// title names the files in messages.
func (m *manifest) title() string { return joined(m.files) }

// load reads the pods of all files. Fields that are not understood are worth a warning: most are misspelt.
func (m *manifest) load(ctx context.Context, c *ctl) ([]*typesv1.Pod, error) {
	files, err := m.expand()
	if err != nil {
		return nil, err
	}
	var dropped func(pod string, fields []string)
	if m.explain {
		dropped = func(pod string, fields []string) {
			fmt.Fprintf(c.err, "pod %s: these fields decide nothing here and are not sent: %s\n", pod, joined(fields))
		}
	}
	var pods []*typesv1.Pod
	for _, file := range files {
		var refused []string
		some, err := podspec.Load(ctx, file, c.in, podspec.Options{
			GenerateUID: m.generateUID, Dropped: dropped,
			Ignored: func(pod, what string) {
				if m.strict {
					refused = append(refused, "pod "+pod+": "+what)
					return
				}
				fmt.Fprintf(c.err, "warning: pod %s: %s is ignored\n", oneLine(pod), oneLine(what))
			},
		})
		if len(refused) > 0 {
			return nil, fmt.Errorf("%s: %s (--strict)", podspec.FileName(file), strings.Join(refused, "; "))
		}
		if err != nil {
			return nil, err
		}
		pods = append(pods, some...)
	}
	return pods, nil
}

// one reads files with exactly one pod.
func (m *manifest) one(ctx context.Context, c *ctl) (*typesv1.Pod, error) {
	pods, err := m.load(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(pods) != 1 {
		return nil, fmt.Errorf("%s: expected one pod, found %d", m.title(), len(pods))
	}
	return pods[0], nil
}

// expand returns the files that are meant, those of a directory in the order of their names.
func (m *manifest) expand() ([]string, error) {
	var files []string
	for _, path := range m.files {
		some, err := podFiles(path, m.recursive)
		if err != nil {
			return nil, err
		}
		files = append(files, some...)
	}
	if i := slices.Index(files, "-"); i >= 0 && slices.Contains(files[i+1:], "-") {
		return nil, fmt.Errorf("-: standard input can be read only once")
	}
	return files, nil
}

// podFiles returns the files that a path means: itself, or what a directory holds.
func podFiles(path string, recursive bool) ([]string, error) {
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []string{path}, nil // podspec reports what is wrong with it, and knows "-"
	}
	var files []string
	err := filepath.WalkDir(path, func(at string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && at != path && !recursive:
			return fs.SkipDir
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(at)):
			files = append(files, at)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: the directory has no .yaml, .yml or .json file", path)
	}
	return files, nil
}
