-- One row for each person, which follows from this person's entries alone.
SELECT
    person.year_of_birth AS year_of_birth,
    CASE person.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END AS sex,
    (
        SELECT COUNT(*)
        FROM visit_occurrence
        WHERE visit_occurrence.person_id = person.person_id
            AND visit_start_date BETWEEN '2024-01-01' AND '2024-12-31'
    ) AS visits,
    (
        SELECT value_as_number
        FROM measurement
        WHERE measurement.person_id = person.person_id
            AND measurement_concept_id = 3004249 -- systolic blood pressure
            AND unit_concept_id = 8876 -- mmHg
        ORDER BY measurement_date DESC, measurement_id DESC
        LIMIT 1
    ) AS systolic
FROM person
