package main

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
	"github.com/berthd/berth/clients/berthctl/output"
	"github.com/berthd/berth/clients/berthctl/table"
)

// listing is what a verb of get found: the answer for programs, tables for people.
type listing struct {
	answer proto.Message
	// head is a line above the tables; empty for none.
	head   string
	tables []section
	// none is what people read if the first table is empty; without it the headers are printed.
	none string
}

// section is a table with the line above it, empty for none.
type section struct {
	title string
	table *table.Table
}

// read calls berthd for a listing.
type read func(ctx context.Context, s *session, args []string) (*listing, error)

// named is the annotation of verbs that print names with -o name.
const named = "named"

// lister makes a verb of get. A verb whose output changes with berthd's events can be watched.
func (c *ctl) lister(a about, watched bool, f read) *cobra.Command {
	var headless, watch bool
	var cmd *cobra.Command
	cmd = c.local(a, func(ctx context.Context, args []string) error {
		c.lines = watch
		if watch && !cmd.Flags().Changed("timeout") {
			c.timeout = 0
		}
		return c.connected(ctx, func(ctx context.Context, s *session) error {
			if watch {
				return s.follow(ctx, kindOf(cmd.Name()), args, f, headless)
			}
			l, err := f(ctx, s, args)
			if err != nil {
				return err
			}
			return s.list(kindOf(cmd.Name()), l, headless)
		})
	})
	cmd.Annotations = map[string]string{named: ""}
	cmd.Flags().BoolVar(&headless, "no-headers", false, "print tables without their headers")
	if watched {
		cmd.Flags().BoolVarP(&watch, "watch", "w", false, "after the list, print every change until interrupted or --timeout; a row has what happened, ADDED, MODIFIED or DELETED")
	}
	return cmd
}

// list prints a listing once.
func (s *session) list(kind string, l *listing, headless bool) error {
	switch {
	case s.forPrograms():
		return s.show(l.answer, nil)
	case s.format == formatName:
		return s.say(func(w io.Writer) { printNames(w, kind, l.tables[0].table, l.tables[0].table) })
	case l.tables[0].table.Len() == 0 && l.none != "":
		fmt.Fprintln(s.err, l.none)
		return nil
	}
	return s.say(func(w io.Writer) {
		if l.head != "" {
			fmt.Fprintf(w, "%s\n", l.head)
		}
		for i, t := range l.tables {
			if i > 0 || l.head != "" {
				if t.table.Len() == 0 {
					continue
				}
				fmt.Fprintln(w)
			}
			if t.title != "" {
				fmt.Fprintf(w, "%s\n", t.title)
			}
			s.table(w, t.table, table.Style{NoHeaders: headless})
		}
	})
}

// timed are the columns that change with time alone.
var timed = []string{"AGE", "SINCE"}

// follow prints a listing, and its changes until the context ends. Only the first table is followed.
func (s *session) follow(ctx context.Context, kind string, args []string, f read, headless bool) error {
	// The stream begins at a revision from before the first list: nothing happens unseen between them.
	revision, err := s.Allocation().GetRevision(ctx, &allocationv1.GetRevisionRequest{})
	if err != nil {
		return err
	}
	var (
		last  *table.Table
		raw   []byte
		style = table.Style{NoHeaders: headless, Widths: &[]int{table.EventWidth}}
	)
	again := func() error {
		l, err := f(ctx, s, args)
		if errors.As(err, new(*unknownPodError)) && last != nil {
			// The pod that is followed was removed.
			l, err = &listing{answer: &allocationv1.ListResponse{}, tables: []section{{table: last.Empty()}}}, nil
		}
		if err != nil {
			return err
		}
		now := l.tables[0].table
		changes := now.Changes(last, slices.DeleteFunc(slices.Clone(timed), func(name string) bool { return !now.Has(name) })...)
		first := last == nil
		last = now
		switch {
		case s.forPrograms():
			data, err := output.JSON(l.answer)
			if err != nil || bytes.Equal(data, raw) {
				return err
			}
			raw = data
			return s.show(l.answer, nil)
		case s.format == formatName:
			return s.say(func(w io.Writer) { printNames(w, kind, changes, now) })
		case changes.Len() == 0 && !first:
			return nil
		}
		return s.say(func(w io.Writer) {
			s.table(w, changes, style)
			style.NoHeaders = true
		})
	}
	w := &watcher{session: s, request: &allocationv1.WatchRequest{}, revision: revision.GetRevision()}
	w.each = func(*allocationv1.WatchResponse) error { return again() }
	if err := again(); err != nil {
		return err
	}
	return w.run(ctx)
}
