package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
)

// Manifest is the flags of verbs that read pods from files.
type Manifest struct {
	Files     []string
	recursive bool
	// Strict refuses fields that are not understood.
	Strict bool
	// GenerateUID makes a uid for a pod without one. A verb that changes nothing sets it.
	GenerateUID bool
	// Explain names the fields that are not sent.
	Explain bool
}

const FilesUsage = "file with pods in YAML or JSON, directory of such files, or - for standard input; may be repeated"

// Flags declares the flags of a verb that admits pods.
func (m *Manifest) Flags(f *pflag.FlagSet) {
	m.ReadFlags(f)
	f.BoolVar(&m.GenerateUID, "generate-uid", false, "give a pod without uid one made from its namespace and name")
}

// ReadFlags declares the flags of a verb that only reads files.
func (m *Manifest) ReadFlags(f *pflag.FlagSet) {
	f.StringSliceVarP(&m.Files, "filename", "f", nil, FilesUsage)
	m.ReadingFlags(f)
}

// ReadingFlags declares how files are read.
func (m *Manifest) ReadingFlags(f *pflag.FlagSet) {
	f.BoolVarP(&m.recursive, "recursive", "R", false, "read the directories within a directory, too")
	f.BoolVar(&m.Strict, "strict", false, "refuse fields and resources that no pod has, instead of a warning")
}

// Title names the files in messages.
func (m *Manifest) Title() string { return Joined(m.Files) }

// Load reads the pods of all files. Fields that are not understood are worth a warning: most are misspelt.
func (m *Manifest) Load(ctx context.Context, c *Ctl) ([]*typesv1.Pod, error) {
	files, err := m.expand()
	if err != nil {
		return nil, err
	}
	var dropped func(pod string, fields []string)
	if m.Explain {
		dropped = func(pod string, fields []string) {
			fmt.Fprintf(c.Err, "pod %s: these fields decide nothing here and are not sent: %s\n", pod, Joined(fields))
		}
	}
	var pods []*typesv1.Pod
	for _, file := range files {
		var refused []string
		some, err := podspec.Load(ctx, file, c.In, podspec.Options{
			GenerateUID: m.GenerateUID, Dropped: dropped,
			Ignored: func(pod, what string) {
				if m.Strict {
					refused = append(refused, "pod "+pod+": "+what)
					return
				}
				c.Warn("pod %s: %s is ignored", pod, what)
			},
		})
		if len(refused) > 0 {
			err = errors.Join(fmt.Errorf("%s: %s (--strict)", podspec.FileName(file), strings.Join(refused, "; ")), err)
		}
		if err != nil {
			return nil, err
		}
		pods = append(pods, some...)
	}
	return pods, nil
}

// One reads files with exactly one pod.
func (m *Manifest) One(ctx context.Context, c *Ctl) (*typesv1.Pod, error) {
	pods, err := m.Load(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(pods) != 1 {
		return nil, fmt.Errorf("%s: expected one pod, found %d", m.Title(), len(pods))
	}
	return pods[0], nil
}

// expand returns the files that are meant, those of a directory in the order of their names.
func (m *Manifest) expand() ([]string, error) {
	var files []string
	for _, path := range m.Files {
		some, err := PodFiles(path, m.recursive)
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

// PodFiles returns the files that a path means: itself, or what a directory holds.
func PodFiles(path string, recursive bool) ([]string, error) {
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
