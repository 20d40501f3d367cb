package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
)

func main() {
	ctx, end := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	end()
	if err != nil {
		fmt.Fprintln(os.Stderr, "publish:", err)
		os.Exit(1)
	}
}

const usage = "expected sign, verify, images, module, key or registry: see hack/tools/publish/doc.go"

// run carries out one command, and writes what it has made to out.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	var key, public, to, commit, version string
	dist := true
	switch args[0] {
	case "sign":
		flags.StringVar(&key, "key", "", "file with the private key (minisign), without a password")
	case "verify":
		flags.StringVar(&public, "public", "", "file with the public key (minisign)")
	case "images":
		flags.StringVar(&to, "to", "", "registry and the beginning of the images' names, as in registry.example/berth")
	case "module":
		dist = false
		flags.StringVar(&to, "to", "", "directory of the module proxy")
		flags.StringVar(&commit, "commit", "HEAD", "revision of this repository")
		flags.StringVar(&version, "version", "", "version of the module, as in v0.1.0")
	case "key":
		dist = false
		flags.StringVar(&to, "to", "", "directory for the keys")
	case "registry":
		dist = false
	default:
		return fmt.Errorf("%s: %s", args[0], usage)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	missing := ""
	flags.VisitAll(func(f *flag.Flag) {
		if f.Value.String() == "" {
			missing = f.Name
		}
	})
	switch {
	case missing != "":
		return fmt.Errorf("%s: -%s is missing", args[0], missing)
	case dist && flags.NArg() != 1:
		return fmt.Errorf("%s: expected the directory of the release, as in: publish %s ... dist", args[0], args[0])
	case !dist && flags.NArg() != 0:
		return fmt.Errorf("%s: unexpected %q", args[0], flags.Arg(0))
	}
	switch args[0] {
	case "sign":
		return sign(flags.Arg(0), key)
	case "verify":
		return verify(flags.Arg(0), public)
	case "images":
		return pushImages(ctx, flags.Arg(0), to, out)
	case "module":
		return writeModule(ctx, ".", to, commit, version)
	case "registry":
		return serveRegistry(ctx, out)
	default:
		return makeKeys(to)
	}
}
