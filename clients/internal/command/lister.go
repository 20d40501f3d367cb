package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/internal/output"
	"github.com/berthd/berth/clients/internal/table"
)

// Listing holds what a verb of get found: the answer for programs, tables for people.
type Listing struct {
	Answer proto.Message
	// Head is a line above the tables; empty for none.
	Head   string
	Tables []Section
	// None is what people read if the first table is empty; without it the headers are printed.
	None string
}

// Section is a table with the line above it, empty for none.
type Section struct {
	Title string
	Table *table.Table
}

// read calls berthd for a listing.
type read func(ctx context.Context, s *Session, args []string) (*Listing, error)

// Named is the annotation of verbs that print names with -o name.
const Named = "named"

// Lister makes a verb of get. A verb whose output changes with berthd's events can be watched.
func (c *Ctl) Lister(a About, watched bool, f read) *cobra.Command {
	var watch bool
	var cmd *cobra.Command
	cmd = c.Local(a, func(ctx context.Context, args []string) error {
		c.Lines, c.verb = watch, cmd.CommandPath()
		if c.sortBy != "" && c.ForPrograms() && c.Format.columns() == "" {
			return &UsageError{Verb: c.verb, Err: errors.New(
				"--sort-by sorts the rows of a table: sort the items of a document, such as with jq '.items |= sort_by(.name)'")}
		}
		switch {
		case c.Nodes == nil:
		case watch:
			return &UsageError{Verb: c.verb, Err: errors.New("--watch follows one node: name it with --node")}
		default:
			return c.listNodes(ctx, KindOf(cmd.Name()), args, f)
		}
		if watch && !cmd.Flags().Changed("timeout") {
			c.Timeout = 0
		}
		return c.Connected(ctx, func(ctx context.Context, s *Session) error {
			if watch {
				return s.follow(ctx, KindOf(cmd.Name()), args, f)
			}
			l, err := f(ctx, s, args)
			if err != nil {
				return err
			}
			return s.list(KindOf(cmd.Name()), l)
		})
	})
	cmd.Annotations = map[string]string{Named: ""}
	cmd.Flags().BoolVar(&c.noHeaders, "no-headers", false, "print tables without their headers")
	cmd.Flags().StringVar(&c.sortBy, "sort-by", "", "sort the rows by this column, such as AGE; -AGE sorts them the other way round")
	if watched {
		cmd.Flags().BoolVarP(&watch, "watch", "w", false,
			"after the list, print every change until interrupted or --timeout; a row has what happened, ADDED, MODIFIED or DELETED")
	}
	return cmd
}

// list prints a listing once.
func (s *Session) list(kind string, l *Listing) error {
	if err := s.sortTables(l); err != nil {
		return err
	}
	switch {
	case s.ForPrograms():
		return s.Show(l.Answer, nil)
	case s.Format == FormatName:
		return s.Say(func(w io.Writer) { printNames(w, kind, l.Tables[0].Table, l.Tables[0].Table) })
	case l.Tables[0].Table.Len() == 0 && l.None != "":
		fmt.Fprintln(s.Err, l.None)
		return nil
	}
	return s.Say(func(w io.Writer) {
		if l.Head != "" {
			fmt.Fprintf(w, "%s\n", l.Head)
		}
		for i, t := range l.Tables {
			if i > 0 || l.Head != "" {
				if t.Table.Len() == 0 {
					continue
				}
				fmt.Fprintln(w)
			}
			if t.Title != "" {
				fmt.Fprintf(w, "%s\n", t.Title)
			}
			s.table(w, t.Table, table.Style{NoHeaders: s.noHeaders})
		}
	})
}

// sortTables sorts the tables that people see.
func (s *Session) sortTables(l *Listing) error {
	if s.ForPrograms() {
		return nil // their columns are other ones
	}
	tables := make([]*table.Table, len(l.Tables))
	for i := range l.Tables {
		tables[i] = l.Tables[i].Table
	}
	return s.sort(tables...)
}

// timed are the columns that change with time alone.
var timed = []string{"AGE", "SINCE"}

// follow prints a listing, and its changes until the context ends. Only the first table is followed.
func (s *Session) follow(ctx context.Context, kind string, args []string, f read) error {
	// The stream begins at a revision from before the first list: nothing happens unseen between them.
	revision, err := s.Allocation().GetRevision(ctx, &allocationv1.GetRevisionRequest{})
	if err != nil {
		return err
	}
	var (
		last  *table.Table
		raw   []byte
		style = table.Style{NoHeaders: s.noHeaders, Widths: &[]int{table.EventWidth}}
	)
	again := func() error {
		l, err := f(ctx, s, args)
		if errors.As(err, new(*UnknownPodError)) && last != nil {
			// The pod that is followed was removed.
			l, err = &Listing{Answer: &allocationv1.ListResponse{}, Tables: []Section{{Table: last.Empty()}}}, nil
		}
		if err != nil {
			return err
		}
		if err := s.sortTables(l); err != nil {
			return err
		}
		now := l.Tables[0].Table
		changes := now.Changes(last, slices.DeleteFunc(slices.Clone(timed), func(name string) bool { return !now.Has(name) })...)
		first := last == nil
		last = now
		switch {
		case s.ForPrograms():
			data, err := output.JSON(l.Answer)
			if err != nil || bytes.Equal(data, raw) {
				return err
			}
			raw = data
			return s.Show(l.Answer, nil)
		case s.Format == FormatName:
			return s.Say(func(w io.Writer) { printNames(w, kind, changes, now) })
		case changes.Len() == 0 && !first:
			return nil
		}
		return s.Say(func(w io.Writer) {
			s.table(w, changes, style)
			style.NoHeaders = true
		})
	}
	w := &Watcher{Session: s, Request: &allocationv1.WatchRequest{}, Revision: revision.GetRevision()}
	w.Each = func(*allocationv1.WatchResponse) error { return again() }
	if err := again(); err != nil {
		return err
	}
	return w.Run(ctx)
}
