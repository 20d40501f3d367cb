// Command image makes an OCI image of one static program, without a container engine: an
// archive (tar) of an image layout that 'ctr images import', 'podman load', 'docker load'
// and 'skopeo copy oci-archive:FILE' read.
//
//	image -o FILE -name REPOSITORY:TAG -program berthd [-label KEY=VALUE]... -created SECONDS ARCH=DIR...
//
// DIR has the files of the image for one architecture; /usr/bin/PROGRAM in it is the
// entry point. With several architectures the archive has one image for each, and an
// index. The same files give the same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// request is what the archive is made of.
type request struct {
	name, program string
	labels        map[string]string
	created       time.Time
	roots         []root
}

// root is the folder with the files for one architecture.
type root struct{ arch, dir string }

func run(args []string) error {
	r := request{labels: map[string]string{}}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	out := flags.String("o", "", "file to write")
	flags.StringVar(&r.name, "name", "", "name of the image, REPOSITORY:TAG")
	flags.StringVar(&r.program, "program", "", "the program in /usr/bin that is the entry point")
	created := flags.Int64("created", 0, "time of creation, in seconds since 1970")
	flags.Func("label", "KEY=VALUE; may be repeated", func(text string) error {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return errors.New("expected KEY=VALUE")
		}
		r.labels[key] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || r.program == "" || !strings.Contains(r.name, ":") || flags.NArg() == 0 {
		return errors.New("expected -o FILE -name REPOSITORY:TAG -program NAME ARCH=DIR...")
	}
	r.created = time.Unix(*created, 0).UTC()
	for _, arg := range flags.Args() {
		arch, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q: expected ARCH=DIR", arg)
		}
		r.roots = append(r.roots, root{arch, dir})
	}
	return r.write(*out)
}
