// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package jobcert is about the certificates of a job: whose they are ([Name]), who may issue them ([Authority]), whether one is
// to be believed ([Verify]), and when one is to be renewed ([Renewal]). It does no I/O and reads no clock.
//
// The authority of a job is derived from its key. It issues the certificate of the launcher that hosts the rendezvous and those of
// the nodes; the launcher of a node issues those of its own ranks and tools. X.509 has no rule for the last part, so Verify checks
// it: the node in the name of a rank is the node in the name of its issuer.
package jobcert

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Role is what the owner of a certificate is to the job.
type Role uint8

// The roles.
const (
	Host Role = iota + 1 // the launcher that hosts the rendezvous
	Node                 // the launcher of a node
	Rank                 // a worker
	Tool                 // a command such as "cohort rpc", on a node of the job
)

var roleNames = map[Role]string{Host: "host", Node: "node", Rank: "rank", Tool: "tool"}

// String names the role.
func (r Role) String() string { return roleNames[r] }

// Name says whose a certificate is. In the certificate it is the only URI:
//
//	cohort://JOB/host
//	cohort://JOB/node/N
//	cohort://JOB/node/N/rank/R
//	cohort://JOB/node/N/tool/NAME
type Name struct {
	Job  string
	Role Role
	// Node is the number of the node at the rendezvous, of a rank or tool that of its launcher; Rank the rank of a worker.
	Node, Rank int
	Tool       string
}

const (
	scheme = "cohort://"
	// maxNumber bounds nodes and ranks, maxWord the name of a job and of a tool.
	maxNumber = 1<<31 - 1
	maxWord   = 64
)

// String is the URI.
func (n Name) String() string {
	text := scheme + n.Job + "/"
	switch n.Role {
	case Host:
		return text + "host"
	case Node:
	case Rank:
		return text + "node/" + strconv.Itoa(n.Node) + "/rank/" + strconv.Itoa(n.Rank)
	case Tool:
		return text + "node/" + strconv.Itoa(n.Node) + "/tool/" + n.Tool
	}
	return text + "node/" + strconv.Itoa(n.Node)
}

// words says who it is to people: "rank 7 of node 1".
func (n Name) words() string {
	switch n.Role {
	case Host:
		return "the host"
	case Node:
	case Rank:
		return fmt.Sprintf("rank %d of node %d", n.Rank, n.Node)
	case Tool:
		return fmt.Sprintf("the tool %s of node %d", n.Tool, n.Node)
	}
	return fmt.Sprintf("node %d", n.Node)
}

// check says what is wrong with a name that a program has made.
func (n Name) check() error {
	again, err := ParseName(n.String())
	if err == nil && again != n {
		err = errors.New("it has fields that its role does not have")
	}
	if err != nil {
		return fmt.Errorf("jobcert: the name %q: %w", n.String(), err)
	}
	return nil
}

// ParseName reads the URI. Each name has one form only.
func ParseName(uri string) (Name, error) {
	var n Name
	rest, ours := strings.CutPrefix(uri, scheme)
	parts := strings.Split(rest, "/")
	if !ours || !isWord(parts[0]) {
		return n, fmt.Errorf("it does not begin with %sJOB/", scheme)
	}
	n.Job = parts[0]
	switch {
	case len(parts) == 2 && parts[1] == "host":
		n.Role = Host
		return n, nil
	case len(parts) != 3 && len(parts) != 5 || parts[1] != "node":
		return n, errors.New("it is neither a host, a node, a rank nor a tool")
	}
	n.Role = Node
	var err error
	if n.Node, err = number(parts[2]); err != nil || len(parts) == 3 {
		return n, err
	}
	switch {
	case parts[3] == "rank":
		n.Role = Rank
		n.Rank, err = number(parts[4])
		return n, err
	case parts[3] == "tool" && isWord(parts[4]):
		n.Role, n.Tool = Tool, parts[4]
		return n, nil
	}
	return n, errors.New("it is neither a rank nor a tool of a node")
}

func number(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n > maxNumber || strconv.FormatUint(n, 10) != text {
		return 0, errors.New("its number is not one")
	}
	return int(n), nil
}

// isWord reports whether text is of small letters, digits and dashes.
func isWord(text string) bool {
	return text != "" && len(text) <= maxWord && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
