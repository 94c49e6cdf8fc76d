// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nodecoord

import (
	"encoding/json"
	"testing"
)

// TestQuestions: an answer goes to its question, and nothing waits for a node that answers twice or too late.
func TestQuestions(t *testing.T) {
	var q Questions
	first, one, forgetOne := q.Ask(1)
	second, two, forgetTwo := q.Ask(2)
	for _, id := range []int{second, first, second, first, second, second + 1} {
		text, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		q.Answered(&Answer{Question: Question{ID: id}, Job: text})
	}
	if len(one) != 1 || len(two) != 2 {
		t.Errorf("%d and %d answers, want 1 and 2", len(one), len(two))
	}
	if a, b := string(<-one), string(<-two); a != "1" || b != "2" {
		t.Errorf("answers %s and %s", a, b)
	}
	forgetOne()
	forgetTwo()
	q.Answered(&Answer{Question: Question{ID: first}})
	if len(one) != 0 {
		t.Error("an answer to a question that is forgotten")
	}
}
