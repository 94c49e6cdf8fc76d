// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// Presence is the question that the host answers by itself, with a list of [Heard]: who has been heard of, and when.
const Presence = "presence"

// Heard is a node of the current attempt, and how long ago its host has heard of it.
type Heard struct {
	Node int           `json:"node"` // its number
	PID  int           `json:"pid"`
	Ago  time.Duration `json:"ago"`
}

// presence answers a question for it. Those who have been silent for the longest time come first, as they are what is asked for.
func (h *Host) presence(q Question) Message {
	var all []Heard
	for _, c := range h.nodes {
		if c.begun == h.attempt {
			all = append(all, Heard{Node: c.place, PID: c.join.PID, Ago: c.wire.Quiet()})
		}
	}
	slices.SortFunc(all, func(a, b Heard) int { return cmp.Or(cmp.Compare(b.Ago, a.Ago), cmp.Compare(a.Node, b.Node)) })
	answer, _ := json.Marshal(all[:min(len(all), MaxRoster)])
	return Message{Seen: &Answer{Question: q, Job: answer}}
}
