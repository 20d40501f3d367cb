package command

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/output"
	"github.com/berthd/berth/clients/internal/table"
)

// Node is one of the nodes that a list is about.
type Node struct {
	Name string
	// Connect connects to the node's berthd.
	Connect func(ctx context.Context) (*berth.Client, error)
}

// nodeColumns have the names of the nodes. The second one is for tables in which NODE is a NUMA node.
const nodeColumn, otherNodeColumn = "NODE", "HOST"

// EachNode calls f for each node, for all at once, with a session whose state and warnings are the node's. It warns of those that did not
// answer, and returns why, by node.
func (c *Ctl) EachNode(ctx context.Context, nodes []Node, f func(ctx context.Context, i int, s *Session) error) []error {
	errs, warnings := make([]error, len(nodes)), make([]bytes.Buffer, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() {
			own := *c
			own.Err, own.Nodes = &warnings[i], nil
			own.Dial = func(ctx context.Context, _ string) (*berth.Client, error) { return n.Connect(ctx) }
			errs[i] = own.Connected(ctx, func(ctx context.Context, s *Session) error { return f(ctx, i, s) })
			if errors.Is(errs[i], context.DeadlineExceeded) && ctx.Err() == nil {
				errs[i] = fmt.Errorf("it takes longer than %s (--timeout)", c.Timeout)
			}
		})
	}
	all.Wait()
	for i, n := range nodes {
		for line := range strings.Lines(warnings[i].String()) {
			fmt.Fprintf(c.Err, "%s: %s\n", OneLine(n.Name), strings.TrimSuffix(line, "\n"))
		}
		if errs[i] != nil {
			c.Warn("node %s did not answer: %v", n.Name, errs[i])
		}
	}
	return errs
}

// Unanswered is the error of a verb for which some nodes did not answer.
func Unanswered(errs []error) error {
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %s did not answer", failed, table.Count(len(errs), "node"))
}

// ShowNodes prints the answers of nodes for programs. A node with an error has no answer.
func (c *Ctl) ShowNodes(nodes []Node, answers []proto.Message, errs []error) error {
	type item struct {
		Node   string          `json:"node"`
		Answer json.RawMessage `json:"answer,omitempty"`
		Error  string          `json:"error,omitempty"`
	}
	list := struct {
		Items []item `json:"items"`
	}{[]item{}}
	for i, n := range nodes {
		one := item{Node: n.Name}
		if errs[i] != nil {
			one.Error = errs[i].Error()
		} else {
			raw, err := output.JSON(answers[i])
			if err == nil {
				one.Answer, err = headed(apiVersion, output.Kind(answers[i]), raw)
			}
			if err != nil {
				return err
			}
		}
		list.Items = append(list.Items, one)
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("print the answers: %w", err)
	}
	return c.Print("NodeList", raw)
}

// listNodes lists the objects of all nodes, for people in one table.
func (c *Ctl) listNodes(ctx context.Context, kind string, args []string, f read) error {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return err
	}
	listings := make([]*Listing, len(nodes))
	errs := c.EachNode(ctx, nodes, func(ctx context.Context, i int, s *Session) (err error) {
		listings[i], err = f(ctx, s, args)
		return err
	})
	if c.ForPrograms() {
		answers := make([]proto.Message, len(nodes))
		for i, l := range listings {
			if l != nil {
				answers[i] = l.Answer
			}
		}
		err = c.ShowNodes(nodes, answers, errs)
	} else if joined := join(nodes, listings); len(joined.Tables) > 0 {
		err = (&Session{Ctl: c}).list(kind, joined)
	}
	return cmp.Or(err, Unanswered(errs))
}

// join puts the listings of nodes together; nil for a node without an answer.
func join(nodes []Node, listings []*Listing) *Listing {
	joined := &Listing{}
	for i, l := range listings {
		if l == nil {
			continue
		}
		joined.None = l.None
		if l.Head != "" {
			joined.Head = strings.TrimPrefix(joined.Head+"\n"+nodes[i].Name+": "+l.Head, "\n")
		}
		for at := len(joined.Tables); at < len(l.Tables); at++ {
			joined.Tables = append(joined.Tables, Section{Title: l.Tables[at].Title})
		}
	}
	for at := range joined.Tables {
		var parts []table.Part
		column := nodeColumn
		for i, l := range listings {
			if l == nil || at >= len(l.Tables) {
				continue
			}
			parts = append(parts, table.Part{Name: nodes[i].Name, Table: l.Tables[at].Table})
			if l.Tables[at].Table.Has(nodeColumn) {
				column = otherNodeColumn
			}
		}
		joined.Tables[at].Table = table.Join(column, parts...)
	}
	return joined
}
