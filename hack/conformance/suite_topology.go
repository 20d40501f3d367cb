package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

// mergeCase is a merge under one policy. Distances has a row for every node id, with one entry
// for each of NUMANodes by position; null if the machine does not report it.
type mergeCase struct {
	NUMANodes []int             `json:"numa_nodes"`
	Distances map[string][]int  `json:"distances"`
	Policy    string            `json:"policy"`
	Options   map[string]string `json:"policy_options"`
	Providers []vector.Hints    `json:"providers"`
}

// mergeAnswer is the recorded result, or the error with which the reference
// refused the configuration or broke down. It is also what berth answers.
type mergeAnswer struct {
	Result *mergeResult  `json:"result"`
	Error  *vector.Error `json:"error"`
}

type mergeResult struct {
	Hint  vector.Affinity `json:"hint"`
	Admit bool            `json:"admit"`
}

var topologyMerge = Define("topology_merge", Plan[mergeCase, mergeAnswer, mergeAnswer]{
	Decide:  decideMerge,
	Compare: compareMerge,
	Differs: differsMerge,
})

func decideMerge(_ *Env, in mergeCase) (mergeAnswer, error) {
	nodes, err := numa.FromIDs(in.NUMANodes)
	if err != nil {
		return mergeAnswer{}, err
	}
	distances, err := in.distances()
	if err != nil {
		return mergeAnswer{}, err
	}
	config := topology.Config{
		Policy:   topology.Policy(in.Policy),
		Scope:    hint.ContainerScope,
		Options:  in.Options,
		MaxNodes: topology.ReferenceMaxNodes,
	}
	m, err := topology.New(config, nodes, distances)
	if err == nil && config.Policy == topology.None {
		// The recordings were made below the reference's manager, which checks nothing else under
		// this policy. Above it, options and distances are checked first under every policy.
		config.Policy = topology.BestEffort
		_, err = topology.New(config, nodes, distances)
	}
	if err != nil {
		return mergeAnswer{Error: &vector.Error{Class: "other", Message: err.Error()}}, nil
	}
	replies := make([]hint.Reply, len(in.Providers))
	for i, p := range in.Providers {
		replies[i].Provider = fmt.Sprint("provider-", i)
		replies[i].Answers = p.Answers()
	}
	r := m.Merge(replies)
	if r.Approximate {
		return mergeAnswer{}, fmt.Errorf("the merge of %d nodes is approximate", len(in.NUMANodes))
	}
	got := &mergeResult{Hint: vector.FromHint(r.Affinity), Admit: r.Admit}
	return mergeAnswer{Result: got}, nil
}

// distances parses the rows; a node with a null row has none.
func (in mergeCase) distances() (numa.Distances, error) {
	lists := map[int][]int{}
	for id, row := range in.Distances {
		i, err := strconv.Atoi(id)
		if err != nil {
			return numa.Distances{}, err
		}
		if row != nil {
			lists[i] = row
		}
	}
	return numa.FromLists(in.NUMANodes, lists)
}

func compareMerge(_ mergeCase, want, got mergeAnswer) string {
	switch {
	case (want.Error == nil) != (got.Error == nil):
		return "one is an error"
	case want.Error != nil:
		if want.Error.Class != got.Error.Class {
			return "class of the error"
		}
	case *want.Result != *got.Result:
		return "result"
	}
	return ""
}

// differsMerge: if node ids have gaps, the reference reads distances at the wrong index. The
// right answer follows from the definition.
func differsMerge(_ *Env, in mergeCase, _, got mergeAnswer) (string, error) {
	switch {
	case got.Result == nil:
		return "", fmt.Errorf("refused: %s", got.Error.Message)
	case in.Policy == string(topology.None):
		return "", errors.New("policy none merges nothing")
	}
	if want := in.byDefinition(); *got.Result != want {
		return "", fmt.Errorf("by definition it is %s", render(want))
	}
	return sparseDistances, nil
}

// sparseDistances is the entry of docs/deviations.md on distances of machines whose node ids have
// gaps.
const sparseDistances = "T2"
