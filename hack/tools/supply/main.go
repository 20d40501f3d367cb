// Command supply tells what berth's programs are made of: a bill of materials in
// CycloneDX's format, and the licences of all modules, held against the list of those that
// are accepted.
//
//	supply sbom -o FILE PROGRAM...
//	supply licences [-accept FILE] [-bundle FILE] PROGRAM...
//
// What a program is made of is read from the program itself, where the Go tool has recorded
// it; go.mod also names what only tests need.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "supply:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("expected sbom or licences")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	switch args[0] {
	case "sbom":
		out := flags.String("o", "", "file to write to")
		_ = flags.Parse(args[1:])
		parts, err := read(flags.Args())
		if err != nil {
			return err
		}
		return parts.writeBOM(*out)
	case "licences":
		accept := flags.String("accept", "", "list of the accepted licences")
		bundle := flags.String("bundle", "", "file to write all licences to")
		_ = flags.Parse(args[1:])
		parts, err := read(flags.Args())
		if err != nil {
			return err
		}
		if *accept != "" {
			text, err := os.ReadFile(*accept)
			if err != nil {
				return err
			}
			if err := parts.check(string(text)); err != nil {
				return err
			}
			fmt.Printf("%d modules in %d programs, all of accepted licences\n", len(parts.modules), len(parts.programs))
		}
		if *bundle == "" {
			return nil
		}
		return parts.writeBundle(*bundle)
	}
	return fmt.Errorf("%q: expected sbom or licences", args[0])
}
