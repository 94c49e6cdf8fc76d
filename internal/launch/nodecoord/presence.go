// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// Presence is the question that the host answers by itself, with a list of [Contact]: when it last received from each node.
const Presence = "presence"

// Contact is a node of the current attempt, and how long ago its host received from it.
type Contact struct {
	Node int           `json:"node"` // its number
	PID  int           `json:"pid"`
	Ago  time.Duration `json:"ago"`
}

// presence answers a question for it. The most silent nodes are first, as the question is about them.
func (h *Host) presence(q Question) Message {
	var all []Contact
	for _, c := range h.nodes {
		if c.begun == h.attempt {
			all = append(all, Contact{Node: c.place, PID: c.join.PID, Ago: c.wire.Quiet()})
		}
	}
	slices.SortFunc(all, func(a, b Contact) int { return cmp.Or(cmp.Compare(b.Ago, a.Ago), cmp.Compare(a.Node, b.Node)) })
	answer, _ := json.Marshal(all[:min(len(all), MaxRoster)])
	return Message{Seen: &Answer{Question: q, Job: answer}}
}
