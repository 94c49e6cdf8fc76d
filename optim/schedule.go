// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package optim

import "math"

// Schedule returns the learning rate after a number of steps (or epochs: what is counted is the caller's choice). It
// corresponds to a class of torch.optim.lr_scheduler.
type Schedule func(step int) float64

// StepLR multiplies by gamma every size steps.
func StepLR(base float64, size int, gamma float64) Schedule {
	return func(step int) float64 { return base * math.Pow(gamma, float64(step/max(size, 1))) }
}

// MultiStepLR multiplies by gamma at each milestone.
func MultiStepLR(base float64, milestones []int, gamma float64) Schedule {
	return func(step int) float64 {
		lr := base
		for _, m := range milestones {
			if step >= m {
				lr *= gamma
			}
		}
		return lr
	}
}

// ExponentialLR multiplies by gamma every step.
func ExponentialLR(base, gamma float64) Schedule {
	return func(step int) float64 { return base * math.Pow(gamma, float64(step)) }
}

// CosineAnnealingLR falls from base to lowest along half a cosine over period steps, rises again, and so on.
func CosineAnnealingLR(base float64, period int, lowest float64) Schedule {
	return func(step int) float64 {
		return lowest + (base-lowest)*(1+math.Cos(math.Pi*float64(step)/float64(max(period, 1))))/2
	}
}

// LinearLR goes from start*base to end*base over the given number of steps and stays there: a warm-up, for instance.
func LinearLR(base, start, end float64, steps int) Schedule {
	return func(step int) float64 {
		return base * (start + (end-start)*float64(min(step, steps))/float64(max(steps, 1)))
	}
}

// SequentialLR follows one schedule up to a milestone and then the next, which counts from its milestone on. There is one
// milestone fewer than schedules.
func SequentialLR(schedules []Schedule, milestones []int) Schedule {
	return func(step int) float64 {
		i, from := 0, 0
		for i < len(milestones) && i+1 < len(schedules) && step >= milestones[i] {
			from = milestones[i]
			i++
		}
		return schedules[i](step - from)
	}
}
